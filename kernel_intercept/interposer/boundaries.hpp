// Memory operations in the program's streams: by them the GPU tells what it has done, and best-effort work
// waits on it.
#pragma once

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/interposer/capture.hpp"
#include "kernel_intercept/interposer/contexts.hpp"

namespace explsched::intercept {

// The number under which the gate counts a stream. gate::kUncounted if all numbers are taken, or the GPU
// cannot write to the gate's memory: the driver is older than CUDA 11.7, or has not shown yet that it does;
// or if another context counts it, which may outlive the memory that this one knows.
int counted_stream(ContextRecord& context, Stream stream, NullStream null_stream) noexcept;

// Puts a boundary into the stream.
void put_boundary(ContextRecord& context, int number, Stream stream, NullStream null_stream,
                  const gate::Boundary& boundary) noexcept;

// For the gate that the context knows, which may be a former manager's: that one stays open.
MemoryOperation wait_for_gate(const ContextRecord& context) noexcept;

// Puts into the stream what tells the end of all launched so far, if that is not told yet: before an event, a
// copy to the host or a wait of the program's. Nothing while the stream captures.
void put_tail(Stream stream, NullStream null_stream) noexcept;
void put_all_tails(ContextRecord& context) noexcept;

// Around a call after which the stream, once it has come there, may stand still for long. What follows does
// not count as done before the GPU has told that it has passed; and a best-effort batch ends before it.
class Hold {
   public:
    Hold(Stream stream, NullStream null_stream) noexcept;
    ~Hold() { put_tail(stream_, null_stream_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Stream stream_;
    NullStream null_stream_;
};

// What has been launched into a stream when a look at it begins. If the look finds the stream idle, that is
// told from here, and nothing is put into the stream, which would be busy with it at the next look.
class Look {
   public:
    Look(Stream stream, NullStream null_stream) noexcept;
    void ended(bool idle) const noexcept;

   private:
    Stream stream_;
    NullStream null_stream_;
    ContextRecord* context_{nullptr};
    int number_{gate::kUncounted};
    gate::Boundary boundary_;
};

// Streams are about to go: their numbers are free, and no thread puts a tail into them any more.
void forget_stream(Stream stream) noexcept;
void forget_streams_of(const ContextRecord& context) noexcept;

// To be called with the driver's answer to a launch or a wait. Of a context that has failed, what the GPU was
// to tell is given up: it never will, and the process may live on.
void heed_failure(const ContextRecord& context, Result result) noexcept;

// Returns when no other thread puts a tail into a stream any more. None does while captures are counted.
void await_tails() noexcept;

// In the child of a fork, into which no other thread has come.
void forget_tails_of_parent() noexcept;

}  // namespace explsched::intercept
