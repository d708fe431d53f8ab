// Device memory that this process holds on each GPU, against the limit of the job option of that name.
//
// Counted is what the program asked for: what a memory pool keeps of freed memory, and what contexts and
// modules take, is not. A process that shares the work of a job counts alone, as a client of MPS does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernel_intercept/interposer/driver_abi.hpp"

namespace explsched::intercept {

// In bytes for each GPU; 0: none. Read from the environment once.
std::uint64_t memory_limit() noexcept;

std::uint64_t memory_used(Device gpu) noexcept;

enum class MemoryKind : std::uint32_t {
    kNone,
    kAllocation,  // key: its address, or an array's handle
    kBlock,       // of cuMemCreate; key: its handle. Lives until nobody holds it and it is mapped nowhere
    kMapping,     // key: its address
};

struct MemoryRecord {
    MemoryKind kind;
    Device gpu;
    std::uint64_t key;
    std::uint64_t bytes;
    Context context;      // kAllocation: dies with it; null: of a pool
    std::uint64_t block;  // kMapping: the block's key
    std::uint32_t holders;
};

// Before the driver is asked: false if the limit would be passed.
bool reserve_memory(Device gpu, std::uint64_t bytes) noexcept;
void return_memory(Device gpu, std::uint64_t bytes) noexcept;

// What was reserved belongs to this record from now on.
void keep_memory(const MemoryRecord& record) noexcept;

// Takes an allocation out of the books; to be kept anew if the driver does not free it.
std::optional<MemoryRecord> take_allocation(std::uint64_t key) noexcept;

void hold_block(std::uint64_t handle) noexcept;
void release_block(std::uint64_t handle) noexcept;
void map_block(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) noexcept;
void unmap_blocks(std::uint64_t address, std::uint64_t bytes) noexcept;

// The allocations of a context are gone. Those of pools are not, whatever context ends.
void forget_memory_of(Context context) noexcept;

}  // namespace explsched::intercept
