// What clients launch, written from public descriptions: quantiles of kernel times of ResNet-50 training
// (HTA, A100: some 900 kernels a step, p10/50/90/99 of 2/16/107/271 us), of BERT on a V100 (Orion:
// 10/34/139/515), of the decode step of a small language model (about a hundred kernels a token, most of them
// bound by the memory bandwidth; Hazy Research). The shares that go with the times are plausible, not
// measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernel/hostile/device.hpp"

namespace hostile {

enum class Step : std::uint8_t { kLaunch, kGraph, kCopy, kSpin, kRecord, kWaitEvent };

struct Call {
    Step step;
    std::uint32_t stream;    // of the client's
    std::vector<Work> work;  // several of a graph
    std::uint32_t event{0};  // kRecord, kWaitEvent
};

struct Program {
    std::string name;
    bool high;
    std::uint32_t streams;
    std::vector<Call> calls;  // of a request or a training step
    std::uint64_t call_ns;    // of the host, for each call
    std::uint64_t pause_ns;   // mean time between requests; 0: never waits for the GPU, but for full queues
    std::uint32_t parts{1};   // of a request, with a completion and `think_ns` of the host in between
    std::uint64_t think_ns{0};
    std::uint32_t request_permille{1000};
};

// Kernels, arrivals and hidden slowdowns are drawn anew for each variant. 0 is the one that is judged; to
// tune on others.
extern std::uint64_t variant;

Program vision_server();      // eager, ResNet-50 inference, polls an event for its end
Program language_server();    // graphs of ~3 ms, one for each token
Program vision_training();    // eager, ResNet-50 training, hundreds of launches ahead
Program language_training();  // eager, transformer, copies on a second stream, events between the streams
Program graph_training();     // graphs of 1 to 5 ms
Program parallel_training();  // eager, with collectives on a stream of their own that spin for a peer
Program short_training();     // eager, kernels of 3 to 40 us only
Program whole_gpu_training(
    std::uint32_t request_permille);  // 700 us kernels that need all; never synchronises

}  // namespace hostile
