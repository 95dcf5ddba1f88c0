// The threads and barriers of a block; see cuda.hpp.
//
// A thread of the block is a fiber: a stack of its own, on which the one OS thread goes on until a barrier. Fibers run
// one at a time, in an order that never changes. To ThreadSanitizer they are threads nevertheless, put in order by
// nothing but barriers: it is told which one runs, and what a barrier says. This file is not compiled for it: it sees
// nothing else of what fibers share, and hears of copies and exchanges by its own memcpy and memset.
#include "cuda.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <utility>
#include <vector>

extern "C" {  // there are these in programs under ThreadSanitizer
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned);
[[gnu::weak]] void __tsan_destroy_fiber(void*);
[[gnu::weak]] void __tsan_switch_to_fiber(void*, unsigned flags);  // 1: which orders nothing
[[gnu::weak]] void __tsan_acquire(void*);
[[gnu::weak]] void __tsan_release(void*);
}

// Opens when `expected` have arrived. They leave one after the other, and the first may be here again before the last
// has left: what the arrivals of even and of odd phases know has places of its own.
struct Barrier {
    unsigned expected, arrived = 0, phase = 0;
    char known[2] = {};

    void release() {
        if (__tsan_release) __tsan_release(&known[phase % 2]);
    }
    void acquire(unsigned of_phase) {
        if (__tsan_acquire) __tsan_acquire(&known[of_phase % 2]);
    }
    void open_if_all_are_here() {
        if (arrived < expected) return;
        arrived = 0;
        ++phase;
    }
};

struct Fiber {
    Index index;
    ucontext_t beginning;
    jmp_buf place;  // where it goes on
    bool begun = false, ended = false;
    const Barrier* barrier = nullptr;  // where it waits, for the end of `phase`
    unsigned phase = 0;
    unsigned exchanged = 0;
    std::vector<Copy> uncommitted;
    std::vector<std::vector<Copy>> groups;
    void* tsan = __tsan_create_fiber ? __tsan_create_fiber(0) : nullptr;

    ~Fiber() {
        if (tsan) __tsan_destroy_fiber(tsan);
    }
    bool can_go_on() const { return !ended && (barrier == nullptr || barrier->phase != phase); }
};

// Two places for what a warp's lanes give, in turn: nobody writes to one before all have read what was there.
struct Exchange {
    alignas(16) char given[2][32][64];
};

Index threadIdx, blockIdx, blockDim;
static Fiber* running;
static jmp_buf scheduler;
static void* scheduler_tsan;
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;
static std::vector<Exchange> exchanges;
static int predicates;
alignas(128) static char dynamic_memory[228 << 10];
// Not a power of 2 apart: caches would have the same few lines for a variable of all of them.
alignas(16) static char stacks[1024][(256 << 10) + 33 * 64];
static void (*kernel)(const void*);
static const void* arguments;

static void switch_tsan(void* fiber) {
    if (fiber) __tsan_switch_to_fiber(fiber, 1);
}

// setcontext only begins a fiber: it sets the signal mask too, by a system call, which setjmp and longjmp do without.
static void go_on(Fiber& fiber) {
    running = &fiber;
    threadIdx = fiber.index;
    if (_setjmp(scheduler) != 0) return;
    switch_tsan(fiber.tsan);
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.beginning);
}
static void to_scheduler() {
    if (_setjmp(running->place) != 0) return;
    switch_tsan(scheduler_tsan);
    _longjmp(scheduler, 1);
}
static void wait_at(Barrier& barrier) {
    barrier.release();
    const unsigned phase = running->phase = barrier.phase;
    running->barrier = &barrier;
    ++barrier.arrived;
    barrier.open_if_all_are_here();
    to_scheduler();
    barrier.acquire(phase);
}
// One that returns early leaves the block's barrier, as on a GPU.
static void run_fiber() {
    kernel(arguments);
    running->ended = true;
    block_barrier.release();
    --block_barrier.expected;
    block_barrier.open_if_all_are_here();
    to_scheduler();
}

static unsigned thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
unsigned lane_of_thread() { return thread_of_block() % 32; }
void __syncthreads() { wait_at(block_barrier); }
void __syncwarp() { wait_at(warp_barriers[thread_of_block() / 32]); }
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
    char(&given)[32][64] = exchanges[thread_of_block() / 32].given[running->exchanged++ % 2];
    memcpy(reinterpret_cast<char*>(given) + lane_of_thread() * bytes, own, bytes);
    __syncwarp();
    return given;
}
void multiply_in_the_warp(float (&d)[4], const Factors& own) {
    const auto lanes = static_cast<const Factors*>(of_the_warp(&own, sizeof own));
    const Factors *row = lanes + lane_of_thread() / 4 * 4, *column = lanes + lane_of_thread() % 4 * 8;
    for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 4; ++i) {
            const int of_pair = k % 8 / 2;
            d[i] += row[of_pair].a[k / 8 * 2 + i / 2][k % 2] * column[4 * (i % 2) + of_pair].b[k / 8][k % 2];
        }
}
char* dynamic_shared() { return dynamic_memory; }

void copy_later(const Copy& copy) { running->uncommitted.push_back(copy); }
void commit_copies() { running->groups.push_back(std::exchange(running->uncommitted, {})); }
void wait_for_copies(unsigned pending) {
    auto& groups = running->groups;
    while (groups.size() > pending) {
        for (const Copy& copy : groups.front()) {
            memset(copy.target, 0, copy.bytes);
            if (copy.valid > 0) memcpy(copy.target, copy.source, copy.valid);
        }
        groups.erase(groups.begin());
    }
}

// Each as far as it gets, in turn: forwards, then backwards, so that what needs an order which no barrier gives goes
// wrong. False if some can't get any further.
static bool run_all(std::vector<Fiber>& fibers) {
    const unsigned count = fibers.size();
    bool forwards = true;
    for (unsigned left = count; left > 0; forwards = !forwards) {
        bool any = false;
        for (unsigned i = 0; i < count; ++i) {
            Fiber& fiber = fibers[forwards ? i : count - 1 - i];
            if (!fiber.can_go_on()) continue;
            any = true;
            go_on(fiber);
            left -= fiber.ended;
        }
        if (!any) return false;
    }
    return true;
}

bool launch(void (*given)(const void*), const void* given_arguments, unsigned blocks, unsigned x, unsigned y) {
    kernel = given;
    arguments = given_arguments;
    blockDim = {x, y, 1};
    scheduler_tsan = __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
    exchanges.assign(x * y / 32, {});
    for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        block_barrier = {x * y};
        warp_barriers.assign(x * y / 32, {32});
        std::vector<Fiber> fibers(x * y);
        for (unsigned i = 0; i < x * y; ++i) {
            fibers[i].index = {i % x, i / x, 0};
            ucontext_t& beginning = fibers[i].beginning;
            getcontext(&beginning);
            beginning.uc_stack.ss_sp = stacks[i];
            beginning.uc_stack.ss_size = sizeof stacks[i];
            makecontext(&beginning, run_fiber, 0);
        }
        if (!run_all(fibers)) return false;
        for (unsigned phase = 0; phase < 2; ++phase) block_barrier.acquire(phase);  // the next block comes after this
    }
    return true;
}
