// The threads and barriers of a block; see cuda.hpp.
#include "cuda.hpp"

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

thread_local Index threadIdx, blockIdx;
Index blockDim;

static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static thread_local std::vector<Copy> uncommitted;
static thread_local std::vector<std::vector<Copy>> groups;

static unsigned thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
unsigned lane_of_thread() { return thread_of_block() % 32; }
void __syncthreads() { block_barrier->arrive_and_wait(); }
void __syncwarp() { warp_barriers[thread_of_block() / 32]->arrive_and_wait(); }

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

// Runs the blocks one after the other, on the same threads. One that returns early leaves the block's barrier, as on a GPU.
void launch(void (*kernel)(const void*), const void* arguments, unsigned blocks, unsigned x, unsigned y) {
    blockDim = {x, y, 1};
    for (unsigned warp = 0; warp < x * y / 32; ++warp) warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
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
