#include "tests/kernel/hostile/programs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace hostile {

std::uint64_t variant = 0;

namespace {

constexpr double kUs = 1000;

// Times in us at the quantiles 0, 0.1, 0.5, 0.9, 0.99 and 1; log-linear between them.
using Quantiles = std::array<double, 6>;
constexpr std::array<double, 6> kAt{0, 0.1, 0.5, 0.9, 0.99, 1};

enum class Flavour : std::uint8_t { kVision, kLanguage, kDecode };

class Kernels {
   public:
    Kernels(std::uint64_t seed, Flavour flavour) : random_(seed + 1000 * variant), flavour_(flavour) {}

    std::vector<Work> some(const Quantiles& us, int count) {
        std::vector<Work> all;
        all.reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) all.push_back(kernel(time_us(us)));
        return all;
    }

   private:
    double time_us(const Quantiles& us) {
        const double at = unit_(random_);
        const std::size_t i =
            static_cast<std::size_t>(std::upper_bound(kAt.begin(), kAt.end() - 1, at) - kAt.begin());
        const double part = (at - kAt[i - 1]) / (kAt[i] - kAt[i - 1]);
        return std::exp(std::log(us[i - 1]) + part * (std::log(us[i]) - std::log(us[i - 1])));
    }

    std::uint32_t between(std::uint32_t low, std::uint32_t high) {
        return std::uniform_int_distribution<std::uint32_t>(low, high)(random_);
    }

    // Short kernels fill little of the GPU; of the longer ones some are bound by compute, some by bandwidth.
    Work kernel(double us) {
        Load load;
        if (us < 8) {
            load = {between(40, 300), between(30, 300)};
        } else if (flavour_ == Flavour::kDecode) {
            load = {between(150, 350), between(500, 850)};
        } else if (unit_(random_) < (flavour_ == Flavour::kVision ? 0.6 : 0.75)) {
            load = {between(450, 950), between(150, 450)};
        } else {
            load = {between(150, 350), between(500, 900)};
        }
        return {Kind::kKernel, us * kUs, load};
    }

    std::mt19937_64 random_;
    std::uniform_real_distribution<double> unit_{0, 1};
    Flavour flavour_;
};

std::vector<Call> launches(const std::vector<Work>& kernels, std::uint32_t stream = 0) {
    std::vector<Call> calls;
    calls.reserve(kernels.size());
    for (const Work& kernel : kernels) calls.push_back({Step::kLaunch, stream, {kernel}});
    return calls;
}

constexpr Quantiles kVisionTraining{1.5, 2, 16, 107, 271, 400};
constexpr Quantiles kVisionInference{2, 4, 13, 35, 60, 80};
constexpr Quantiles kBert{5, 10, 34, 139, 400, 515};
constexpr Quantiles kDecode{3, 5, 22, 54, 70, 80};
constexpr Quantiles kShort{3, 4, 11, 30, 39, 40};

}  // namespace

Program vision_server() {
    Program program{
        "vision-server", true, 1, launches(Kernels(1, Flavour::kVision).some(kVisionInference, 165)), 4000,
        7'000'000};
    program.calls.insert(program.calls.begin(), {Step::kCopy, 0, {{Kind::kCopy, 25 * kUs, {0, 60}}}});
    program.calls.push_back({Step::kCopy, 0, {{Kind::kCopy, 4 * kUs, {0, 30}}}});
    return program;
}

Program language_server() {
    Program program{"language-server", true, 1, {}, 10'000, 40'000'000, 6, 250'000};
    program.calls.push_back({Step::kGraph, 0, Kernels(2, Flavour::kDecode).some(kDecode, 110)});
    program.calls.push_back({Step::kCopy, 0, {{Kind::kCopy, 3 * kUs, {0, 20}}}});
    return program;
}

Program vision_training() {
    return {"vision-training",
            false,
            1,
            launches(Kernels(3, Flavour::kVision).some(kVisionTraining, 900)),
            5000,
            0};
}

Program language_training() {
    Program program{"language-training", false, 2, {}, 5000, 0};
    const std::vector<Work> kernels = Kernels(4, Flavour::kLanguage).some(kBert, 400);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        if (i % 100 == 50) {  // a batch of data, used a hundred kernels later
            program.calls.push_back({Step::kCopy, 1, {{Kind::kCopy, 300 * kUs, {0, 90}}}});
            program.calls.push_back({Step::kRecord, 1, {}, 0});
        }
        if (i % 100 == 99) program.calls.push_back({Step::kWaitEvent, 0, {}, 0});
        program.calls.push_back({Step::kLaunch, 0, {kernels[i]}});
    }
    return program;
}

Program graph_training() {
    Program program{"graph-training", false, 1, {}, 12'000, 0};
    for (const int kernels : {30, 60, 120, 45, 90}) {
        program.calls.push_back(
            {Step::kGraph, 0,
             Kernels(static_cast<std::uint64_t>(kernels), Flavour::kLanguage).some(kBert, kernels / 2)});
    }
    return program;
}

Program parallel_training() {
    Program program = vision_training();
    program.name = "parallel-training";
    program.streams = 2;
    std::vector<Call> calls;
    for (std::size_t i = 0; i < program.calls.size(); ++i) {
        calls.push_back(program.calls[i]);
        if (i % 90 != 89) continue;
        calls.push_back({Step::kRecord, 0, {}, 1});
        calls.push_back({Step::kWaitEvent, 1, {}, 1});
        calls.push_back(
            {Step::kSpin, 1, {{Kind::kSpin, (20 + static_cast<double>(i % 7) * 60) * kUs, {80, 60}}}});
    }
    calls.push_back({Step::kRecord, 1, {}, 2});
    calls.push_back({Step::kWaitEvent, 0, {}, 2});
    program.calls = std::move(calls);
    return program;
}

Program short_training() {
    return {"short-training", false, 1, launches(Kernels(6, Flavour::kVision).some(kShort, 1200)), 4000, 0};
}

Program whole_gpu_training(std::uint32_t request_permille) {
    Program program{"whole-gpu-training",
                    false,
                    1,
                    launches(std::vector<Work>(40, Work{Kind::kKernel, 700 * kUs, {1000, 400}})),
                    5000,
                    0};
    program.request_permille = request_permille;
    return program;
}

}  // namespace hostile
