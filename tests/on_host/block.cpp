// The threads and barriers of a block; see cuda.hpp.
#include "cuda.hpp"

#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

thread_local Index threadIdx, blockIdx;
Index blockDim;

static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
// Two places for what a warp's lanes give, in turn: nobody writes to one before all have read what was there.
struct Exchange {
    alignas(16) char given[2][32][64];
};
static std::vector<Exchange> exchanges;
static thread_local unsigned exchanged;
static std::atomic<int> predicates;
alignas(128) static char dynamic_memory[228 << 10];
static thread_local std::vector<Copy> uncommitted;
static thread_local std::vector<std::vector<Copy>> groups;

static unsigned thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
unsigned lane_of_thread() { return thread_of_block() % 32; }
void __syncthreads() { block_barrier->arrive_and_wait(); }
void __syncwarp() { warp_barriers[thread_of_block() / 32]->arrive_and_wait(); }
int __syncthreads_or(int predicate) {
    if (predicate) predicates = 1;
    __syncthreads();
    const int any = predicates;
    __syncthreads();
    predicates = 0;
    __syncthreads();
    return any;
}
const void* of_the_warp(const void* own, unsigned bytes) {
    char(&given)[32][64] = exchanges[thread_of_block() / 32].given[exchanged++ % 2];
    memcpy(reinterpret_cast<char*>(given) + lane_of_thread() * bytes, own, bytes);
    __syncwarp();
    return given;
}
char* dynamic_shared() { return dynamic_memory; }

void copy_later(const Copy& copy) { uncommitted.push_back(copy); }
void commit_copies() {
    groups.push_back(uncommitted);
    uncommitted.clear();
}
void wait_for_copies(unsigned pending) {
    while (groups.size() > pending) {
        for (const Copy& copy : groups.front()) {
            memset(copy.target, 0, copy.bytes);
            if (copy.valid > 0) memcpy(copy.target, copy.source, copy.valid);
        }
        groups.erase(groups.begin());
    }
}

// Runs the blocks one after the other, on the same threads. One that returns early leaves the block's barrier, as on a
// GPU.
void launch(void (*kernel)(const void*), const void* arguments, unsigned blocks, unsigned x, unsigned y) {
    blockDim = {x, y, 1};
    for (unsigned warp = 0; warp < x * y / 32; ++warp) warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
    exchanges.assign(x * y / 32, {});
    const auto next_block = [=]() noexcept { block_barrier = std::make_unique<std::barrier<>>(x * y); };
    next_block();
    std::barrier between(x * y, next_block);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < x * y; ++i)
        threads.emplace_back([=, &between] {
            threadIdx = {i % x, i / x, 0};
            for (unsigned block = 0; block < blocks; ++block) {
                blockIdx = {block, 0, 0};
                kernel(arguments);
                block_barrier->arrive_and_drop();
                between.arrive_and_wait();
            }
        });
    for (std::thread& thread : threads) thread.join();
    warp_barriers.clear();
}
