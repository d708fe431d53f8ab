// Whether a wait for one stream was a wait for everything.
//
// A context remembers the one stream that all its launches since the last idle moment went to. Waiting for
// that stream is then waiting for all of them; most inference servers and many trainings use a single one.
#pragma once

#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"
#include "kernel_intercept/interposer/symbols.hpp"

namespace explsched::intercept {

constexpr std::uintptr_t kNoStream = 0;
constexpr std::uintptr_t kManyStreams = UINTPTR_MAX;

// What a null stream means to an entry point, by its name. Not by substr, which could throw, and so would
// bring the C++ runtime along.
constexpr NullStream null_stream_of(Symbol symbol) {
    const std::string_view name = kSymbolNames[static_cast<std::size_t>(symbol)];
    constexpr std::size_t kSuffix = 5;  // _ptsz, or _ptds where there is no argument for a stream
    if (name.size() <= kSuffix) return NullStream::kLegacy;
    const std::string_view end(name.data() + name.size() - kSuffix, kSuffix);
    return end == "_ptsz" || end == "_ptds" ? NullStream::kPerThread : NullStream::kLegacy;
}

// Streams per thread share one handle, so they count as many.
inline std::uintptr_t stream_identity(Stream stream, NullStream null_stream) noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    if (handle == 0) return null_stream == NullStream::kLegacy ? kLegacyStream : kManyStreams;
    return handle == kPerThreadStream ? kManyStreams : handle;
}

inline void note_stream(ContextRecord& record, std::uintptr_t stream) noexcept {
    if (record.last_event.load(std::memory_order_relaxed) != nullptr) record.last_event.store(nullptr);
    std::uintptr_t held = record.streams.load(std::memory_order_relaxed);
    while (held != stream && held != kManyStreams) {
        const std::uintptr_t next = held == kNoStream ? stream : kManyStreams;
        if (record.streams.compare_exchange_weak(held, next, std::memory_order_relaxed)) return;
    }
}

}  // namespace explsched::intercept
