// What is known about a handle: a table of fixed size that is read without locks.
//
// Each slot is a seqlock over atomic words: a reader copies the words and takes them only if no writer was
// there meanwhile; a writer that meets another one leaves the slot to it. So the table may forget, under
// collisions or when full, and is right otherwise: callers must be able to do without an entry. All zero is
// empty, hence no constructor, and pages never used cost no memory.
//
// Handles are reused by the driver. An entry carries the epoch of its making and is found in that one only.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <type_traits>

namespace explsched::intercept {

constexpr std::uint64_t mixed(std::uint64_t value) noexcept {  // the finaliser of SplitMix64
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

constexpr unsigned bits_of(std::size_t power_of_two) noexcept {
    return power_of_two == 1 ? 0 : 1 + bits_of(power_of_two / 2);
}

template <typename Value, std::size_t kCapacity>
class HandleTable {
    static_assert(std::is_trivially_copyable_v<Value>);
    static_assert((kCapacity & (kCapacity - 1)) == 0, "a power of two");

    static constexpr std::size_t kWords = (sizeof(Value) + 7) / 8;
    static constexpr std::size_t kProbes = 8;
    using Words = std::array<std::uint64_t, kWords>;

    // The upper bits of the product depend on all of the key (Knuth, TAOCP 3, section 6.4).
    static constexpr std::size_t place_of(std::uint64_t key) noexcept {
        return (key * 0x9e3779b97f4a7c15ULL) >> (64 - bits_of(kCapacity));
    }

   public:
    // Keys are handles or hashes, never 0. False if there is no entry; `value` is then left as it was.
    bool read(std::uint64_t key, std::uint32_t epoch, Value& value) const noexcept {
        const std::size_t start = place_of(key);
        for (std::size_t i = 0; i < kProbes; ++i) {
            const Slot& slot = slots_[(start + i) & (kCapacity - 1)];
            if (slot.key.load(std::memory_order_acquire) == key && slot.read(key, epoch, value)) return true;
        }
        return false;
    }

    std::optional<Value> find(std::uint64_t key, std::uint32_t epoch) const noexcept {
        Value value;
        if (!read(key, epoch, value)) return std::nullopt;
        return value;
    }

    // False if there is no room. In a table in which all is put so, each key by one thread at a time, entries
    // stay until they are forgotten.
    bool put_if_room(std::uint64_t key, std::uint32_t epoch, const Value& value) noexcept {
        const Words words = words_of(value);
        for (const std::uint64_t held : {key, std::uint64_t{0}}) {  // its own slot, else an empty one
            for (std::size_t i = 0; i < kProbes; ++i) {
                if (slot_of(key, i).replace(held, key, epoch, words)) return true;
            }
        }
        return false;
    }

    // Without room, in one of the slots in its reach, chosen by its hash.
    void put(std::uint64_t key, std::uint32_t epoch, const Value& value) noexcept {
        if (put_if_room(key, epoch, value)) return;
        Slot& taken = slot_of(key, mixed(key) % kProbes);
        taken.replace(taken.key.load(std::memory_order_relaxed), key, epoch, words_of(value));
    }

    // In all slots: threads that put one key at the same time may each have taken one.
    void forget(std::uint64_t key) noexcept {
        for (std::size_t i = 0; i < kProbes; ++i) slot_of(key, i).replace(key, 0, 0, {});
    }

   private:
    static Words words_of(const Value& value) noexcept {
        Words words{};
        std::memcpy(words.data(), &value, sizeof value);
        return words;
    }

    struct Slot {
        std::atomic<std::uint32_t> sequence;  // odd while written
        std::atomic<std::uint32_t> epoch;
        std::atomic<std::uint64_t> key;
        std::array<std::atomic<std::uint64_t>, kWords> words;

        // Word by word, in registers: a core that reads in one go what it has just stored in parts waits for
        // the stores.
        bool read(std::uint64_t wanted, std::uint32_t wanted_epoch, Value& out) const noexcept {
            const std::uint32_t before = sequence.load(std::memory_order_acquire);
            if ((before & 1) != 0) return false;
            const bool same = key.load(std::memory_order_relaxed) == wanted &&
                              epoch.load(std::memory_order_relaxed) == wanted_epoch;
            Words copy;
#pragma GCC unroll 8
            for (std::size_t i = 0; i < kWords; ++i) copy[i] = words[i].load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (!same || sequence.load(std::memory_order_relaxed) != before) return false;
            auto* bytes = reinterpret_cast<unsigned char*>(&out);
#pragma GCC unroll 8
            for (std::size_t i = 0; i < kWords; ++i) {
                std::memcpy(bytes + 8 * i, &copy[i], std::min<std::size_t>(8, sizeof(Value) - 8 * i));
            }
            return true;
        }

        // Only if it holds `held`: no writer was there since that was read, if the sequence is as it was.
        // While it holds another key it is not even taken for a moment, in which that key's readers would
        // miss it.
        bool replace(std::uint64_t held, std::uint64_t new_key, std::uint32_t new_epoch,
                     const Words& in) noexcept {
            std::uint32_t before = sequence.load(std::memory_order_acquire);
            if ((before & 1) != 0 || key.load(std::memory_order_relaxed) != held) return false;
            if (!sequence.compare_exchange_strong(before, before + 1, std::memory_order_acquire))
                return false;
            std::atomic_thread_fence(std::memory_order_release);
            epoch.store(new_epoch, std::memory_order_relaxed);
            for (std::size_t i = 0; i < kWords; ++i) words[i].store(in[i], std::memory_order_relaxed);
            key.store(new_key, std::memory_order_relaxed);
            sequence.store(before + 2, std::memory_order_release);
            return true;
        }
    };

    Slot& slot_of(std::uint64_t key, std::size_t probe) noexcept {
        return slots_[(place_of(key) + probe) & (kCapacity - 1)];
    }

    std::array<Slot, kCapacity> slots_;
};

inline std::uint64_t key_of(const void* handle) noexcept { return reinterpret_cast<std::uintptr_t>(handle); }

}  // namespace explsched::intercept
