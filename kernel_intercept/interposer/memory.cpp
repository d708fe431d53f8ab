#include "kernel_intercept/interposer/memory.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "explsched/job_options.h"
#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/handle_table.hpp"
#include "kernel_intercept/interposer/memory_amount.hpp"

namespace explsched::intercept {
namespace {

constexpr std::uint64_t kUnread = UINT64_MAX;
std::atomic<std::uint64_t> g_limit{kUnread};
std::array<std::atomic<std::uint64_t>, gate::kMaxGpus> g_used;

// Open addressing with linear probing, at most half full; grows. A record that finds no memory is not kept:
// then its bytes count for ever, which is less than the limit that was asked for.
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
MemoryRecord* g_records = nullptr;
std::size_t g_capacity = 0, g_count = 0;

class Lock {
   public:
    Lock() { pthread_mutex_lock(&g_mutex); }
    ~Lock() { pthread_mutex_unlock(&g_mutex); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
};

std::atomic<std::uint64_t>& used_on(Device gpu) noexcept { return g_used[static_cast<std::size_t>(gpu)]; }

std::size_t home_of(MemoryKind kind, std::uint64_t key) noexcept {
    return mixed(key + static_cast<std::uint64_t>(kind)) & (g_capacity - 1);
}

MemoryRecord* find(MemoryKind kind, std::uint64_t key) noexcept {
    if (g_capacity == 0) return nullptr;
    for (std::size_t at = home_of(kind, key);; at = (at + 1) & (g_capacity - 1)) {
        if (g_records[at].kind == MemoryKind::kNone) return nullptr;
        if (g_records[at].kind == kind && g_records[at].key == key) return &g_records[at];
    }
}

void place(const MemoryRecord& record) noexcept {
    std::size_t at = home_of(record.kind, record.key);
    while (g_records[at].kind != MemoryKind::kNone) at = (at + 1) & (g_capacity - 1);
    g_records[at] = record;
    ++g_count;
}

bool grow() noexcept {
    constexpr std::size_t kFirst = 1024;
    MemoryRecord* const before = g_records;
    const std::size_t size = g_capacity;
    auto* const after =
        static_cast<MemoryRecord*>(std::calloc(size == 0 ? kFirst : 2 * size, sizeof(MemoryRecord)));
    if (after == nullptr) return false;
    g_records = after;
    g_capacity = size == 0 ? kFirst : 2 * size;
    g_count = 0;
    for (std::size_t i = 0; i < size; ++i) {
        if (before[i].kind != MemoryKind::kNone) place(before[i]);
    }
    std::free(before);
    return true;
}

// Closes the gap, so that no search ends there too early (Knuth, TAOCP 3, section 6.4, algorithm R).
void erase(MemoryRecord* record) noexcept {
    auto gap = static_cast<std::size_t>(record - g_records);
    --g_count;
    for (std::size_t at = gap;;) {
        g_records[gap].kind = MemoryKind::kNone;
        for (;;) {
            at = (at + 1) & (g_capacity - 1);
            if (g_records[at].kind == MemoryKind::kNone) return;
            const std::size_t home = home_of(g_records[at].kind, g_records[at].key);
            if (((at - home) & (g_capacity - 1)) >= ((at - gap) & (g_capacity - 1))) break;
        }
        g_records[gap] = g_records[at];
        gap = at;
    }
}

void drop_holder(std::uint64_t handle) noexcept {
    MemoryRecord* block = find(MemoryKind::kBlock, handle);
    if (block == nullptr || --block->holders != 0) return;
    return_memory(block->gpu, block->bytes);
    erase(block);
}

template <typename Which, typename Then>
void drop_each(Which which, Then then) noexcept {
    for (std::size_t i = 0; i < g_capacity;) {
        if (g_records[i].kind == MemoryKind::kNone || !which(g_records[i])) {
            ++i;
            continue;
        }
        const MemoryRecord record = g_records[i];
        erase(&g_records[i]);  // what follows may have moved here
        const std::size_t count = g_count;
        then(record);
        if (g_count != count) i = 0;  // it has erased, too: others may have moved to where we were
    }
}

std::uint64_t limit_of_environment() noexcept {
    const char* const text = std::getenv(EXPL_MEMORY_VARIABLE);
    if (text == nullptr || *text == '\0') return 0;
    const std::uint64_t limit = bytes_of_amount(text);
    if (limit == 0) {
        char line[256];
        std::snprintf(line, sizeof line,
                      "explsched: " EXPL_MEMORY_VARIABLE
                      ": found '%.64s', accepted is an amount such as 20G: "
                      "there is no limit\n",
                      text);
        gate::tell(line);
    }
    return limit;
}

}  // namespace

std::uint64_t memory_limit() noexcept {
    std::uint64_t limit = g_limit.load(std::memory_order_relaxed);
    if (__builtin_expect(limit == kUnread, 0)) {
        limit = limit_of_environment();
        // A child of a process that has used the GPU has no memory of it; any other starts as its parent did.
        // A thread of the parent may have held the lock.
        if (limit != 0) {
            pthread_atfork(nullptr, nullptr, [] {
                if (g_capacity != 0) g_limit = 0;
                pthread_mutex_init(&g_mutex, nullptr);
            });
        }
        g_limit.store(limit, std::memory_order_relaxed);
    }
    return limit;
}

std::uint64_t memory_used(Device gpu) noexcept { return used_on(gpu).load(std::memory_order_relaxed); }

bool reserve_memory(Device gpu, std::uint64_t bytes) noexcept {
    const std::uint64_t limit = memory_limit();
    std::uint64_t used = used_on(gpu).load(std::memory_order_relaxed);
    do {
        if (bytes > limit || used > limit - bytes) return false;
    } while (!used_on(gpu).compare_exchange_weak(used, used + bytes));
    return true;
}

void return_memory(Device gpu, std::uint64_t bytes) noexcept { used_on(gpu).fetch_sub(bytes); }

void keep_memory(const MemoryRecord& record) noexcept {
    const Lock lock;
    if (2 * (g_count + 1) > g_capacity && !grow()) return;
    place(record);
}

std::optional<MemoryRecord> take_allocation(std::uint64_t key) noexcept {
    const Lock lock;
    MemoryRecord* found = find(MemoryKind::kAllocation, key);
    if (found == nullptr) return std::nullopt;
    const MemoryRecord record = *found;
    erase(found);
    return record;
}

void hold_block(std::uint64_t handle) noexcept {
    const Lock lock;
    if (MemoryRecord* block = find(MemoryKind::kBlock, handle)) ++block->holders;
}

void release_block(std::uint64_t handle) noexcept {
    const Lock lock;
    drop_holder(handle);
}

void map_block(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) noexcept {
    hold_block(handle);
    keep_memory({MemoryKind::kMapping, 0, address, bytes, nullptr, handle, 1});
}

void unmap_blocks(std::uint64_t address, std::uint64_t bytes) noexcept {
    const Lock lock;
    const auto release = [](const MemoryRecord& mapping) { drop_holder(mapping.block); };
    if (MemoryRecord* one = find(MemoryKind::kMapping, address); one != nullptr && one->bytes == bytes) {
        const MemoryRecord mapping = *one;
        erase(one);
        return release(mapping);
    }
    drop_each(
        [&](const MemoryRecord& record) {
            return record.kind == MemoryKind::kMapping && record.key - address < bytes;
        },
        release);
}

void forget_memory_of(Context context) noexcept {
    const Lock lock;
    drop_each(
        [&](const MemoryRecord& record) {
            return record.kind == MemoryKind::kAllocation && record.context == context;
        },
        [](const MemoryRecord& record) { return_memory(record.gpu, record.bytes); });
}

}  // namespace explsched::intercept
