// A GPU that several processes share, and its queues.
//
// The model is computed lazily: whoever touches the GPU first brings it up to the present. Nobody runs in the
// background, and a process that dies can hold nobody up.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/kernel/fakecuda/gpu/log.hpp"
#include "tests/kernel/fakecuda/gpu/shared_file.hpp"

namespace fakecuda::gpu {

class VirtualGpu {
   public:
    VirtualGpu(const std::string& path, const Settings& settings);  // throws as SharedFile and Log do

    std::int32_t open_stream();  // throws std::runtime_error when none is left
    void close_stream(std::int32_t stream);
    std::int32_t open_event();  // likewise
    void close_event(std::int32_t event);

    // Appends to the stream's queue, not to run before all that was submitted to the streams `after`. Waits
    // while the queue is full. Returns the stream's count of tasks with this one.
    std::uint64_t submit(std::int32_t stream, const Work& work, const std::vector<std::int32_t>& after);
    // Appends a mark that ends when everything before it has, and then gives its time to `event`.
    std::uint64_t mark(std::int32_t stream, std::int32_t event, const std::vector<std::int32_t>& after);
    // Appends an access to this process's memory. A thread of this process carries it out, within some 50 us.
    void access(std::int32_t stream, const MemoryAccess& memory, const std::vector<std::int32_t>& after);
    // Lets what follows in `stream` wait for another stream's first `on.count` tasks.
    void wait_for(std::int32_t stream, Dependency on);

    std::uint64_t submitted(std::int32_t stream);
    std::vector<Dependency> all_of(const std::vector<std::int32_t>& streams);  // what they were given so far
    bool has_ended(std::int32_t stream, std::uint64_t count);
    void wait_until_ended(std::int32_t stream, std::uint64_t count);

    // When the event's last mark ended, in ns of the virtual GPU; nothing while it has not.
    std::optional<std::int64_t> event_time_ns(std::int32_t event);

    // Device memory of this process, out of what all processes share. False if there is not so much left.
    bool take_memory(std::uint64_t bytes, std::uint64_t capacity_bytes);
    void return_memory(std::uint64_t bytes);
    std::uint64_t memory_bytes();  // of all processes

    const Settings& settings() const { return file_.state().settings; }

   private:
    template <typename Work>
    auto locked(Work work);
    void catch_up(std::vector<EndedKernel>& ended);  // the caller holds the lock
    std::uint64_t memory_in_use();                   // likewise
    std::int64_t virtual_clock_ns(std::int64_t clock_ns) const;
    bool try_append(std::int32_t stream, const Work& work, std::int64_t called_ns, std::int32_t event,
                    const std::vector<Dependency>& after, const MemoryAccess& memory);
    std::uint64_t append(std::int32_t stream, const Work& work, std::int64_t called_ns, std::int32_t event,
                         const std::vector<Dependency>& after, const MemoryAccess& memory = {});
    void sleep_until(std::int64_t virtual_ns) const;
    void serve_memory();
    void stop_serving_memory();

    SharedFile file_;
    std::optional<Log> log_;
    std::atomic<bool> serves_memory_{false};
    std::atomic<int> writing_{0};              // threads that have something for the log
    static std::atomic<VirtualGpu*> serving_;  // the last one that serves memory
};

}  // namespace fakecuda::gpu
