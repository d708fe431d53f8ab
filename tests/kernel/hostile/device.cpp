#include "tests/kernel/hostile/device.hpp"

#include <algorithm>
#include <cmath>

#include "tests/kernel/hostile/programs.hpp"

namespace hostile {

namespace {

constexpr std::uint64_t kClockPeriodNs = 50'000'000;

// Of a kernel's speed, that so many of the multiprocessors leave it.
double share_of(std::uint32_t permille, const Load& load) {
    return std::min(1.0, permille / std::max<double>(load.compute_permille, 1));
}

bool takes_gpu(Kind kind) { return kind == Kind::kKernel || kind == Kind::kSpin || kind == Kind::kCopy; }

}  // namespace

Device::Device(const DeviceSettings& settings, std::uint32_t clients, std::uint64_t now_ns)
    : settings_(settings),
      now_ns_(now_ns),
      clock_changes_ns_(now_ns),
      standings_(clients),
      done_ns_(clients, 0.0) {
    random_.seed(7 + variant);
    clocks_.seed(11 + variant);
    std::uniform_real_distribution<double> factor(0.02, settings.most_hidden);
    hidden_.assign(clients, std::vector<double>(clients, 0.0));
    for (std::uint32_t a = 0; a < clients; ++a) {
        for (std::uint32_t b = 0; b < a; ++b) hidden_[a][b] = hidden_[b][a] = factor(random_);
    }
}

std::uint32_t Device::open_stream(std::uint32_t client) {
    std::uint32_t own = 0;
    for (const Stream& stream : streams_) own += stream.client == client ? 1 : 0;
    Stream stream{};
    stream.client = client;
    stream.channel = own % 2;
    streams_.push_back(std::move(stream));
    return static_cast<std::uint32_t>(streams_.size() - 1);
}

void Device::submit(std::uint32_t index, const Operation& operation) {
    Stream& stream = streams_[index];
    if (stream.queue.empty()) {
        stream.remaining_ns = operation.work.alone_ns;
        stream.starts_at_ns = std::max(stream.starts_at_ns, now_ns_ + settings_.gap_ns);
    }
    stream.queue.push_back(operation);
    ++stream.submitted;
}

bool Device::is_idle(std::uint32_t client) const {
    return std::all_of(streams_.begin(), streams_.end(), [client](const Stream& stream) {
        return stream.client != client || stream.queue.empty();
    });
}

void Device::watch(const std::atomic<std::uint32_t>* gate) {
    gates_.push_back({gate, gate->load(), gate->load(), UINT64_MAX});
}

void Device::look_at_gates() {
    for (Gate& gate : gates_) {
        const std::uint32_t word = gate.word->load(std::memory_order_relaxed);
        if (word == gate.next) continue;
        gate.next = word;
        std::uniform_int_distribution<std::uint64_t> delay(settings_.visible_ns / 5, settings_.visible_ns);
        if (gate.changes_at_ns == UINT64_MAX) gate.changes_at_ns = now_ns_ + delay(random_);
    }
}

bool Device::gate_open(const Operation& wait) const {
    for (const Gate& gate : gates_) {
        if (gate.word == wait.gate) return (gate.seen & wait.value) != 0;
    }
    return true;
}

bool Device::channel_blocked(const Stream& stream) const {
    return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& other) {
        return other.blocked && other.client == stream.client && other.channel == stream.channel;
    });
}

void Device::start(Stream& stream) {
    if (stream.queue.empty() || stream.running || stream.starts_at_ns > now_ns_) return;
    const Operation& head = stream.queue.front();
    stream.blocked = false;
    if (head.work.kind == Kind::kWait && !gate_open(head)) {
        stream.blocked = true;
    } else if (head.work.kind == Kind::kWaitEvent && streams_[head.stream].completed < head.value) {
        return;
    } else if (!channel_blocked(stream)) {
        stream.running = true;
        stream.began_ns = now_ns_;
        if (!takes_gpu(head.work.kind))
            stream.remaining_ns =
                head.address != nullptr || head.gate != nullptr ? static_cast<double>(settings_.memop_ns) : 0;
    }
}

void Device::finish(Stream& stream) {
    const Operation& head = stream.queue.front();
    if (head.work.kind == Kind::kWrite) head.address->store(head.value, std::memory_order_relaxed);
    if (takes_gpu(head.work.kind)) {
        done_ns_[stream.client] += head.work.alone_ns;
        stream.starts_at_ns = now_ns_ + settings_.gap_ns;
    }
    stream.queue.pop_front();
    ++stream.completed;
    stream.running = false;
    if (!stream.queue.empty()) stream.remaining_ns = stream.queue.front().work.alone_ns;
}

double Device::slowdown(const std::vector<Running>& together, bool first) const {
    double compute = 0, bandwidth = 0, prior = 0, hidden = 1;
    for (std::size_t i = 0; i < together.size(); ++i) {
        (together[i].first ? prior : compute) += together[i].share * together[i].load.compute_permille;
        for (std::size_t j = 0; j < i; ++j)
            hidden += hidden_[together[i].client][together[j].client] *
                      std::min(together[i].share, together[j].share);
    }
    // What the prior ones leave, if there are any.
    const double left = std::max(1000 - prior, 1.0);
    const double held = prior == 0 ? 1 : std::max(1.0, compute / left);
    for (const Running& one : together)
        bandwidth += one.share * one.load.bandwidth_permille / (one.first ? 1 : held);
    const double most = prior == 0 ? compute : first ? prior : 1000 * held;
    return std::max({1000.0, most, first || prior == 0 ? bandwidth : bandwidth * held}) / 1000.0 * hidden;
}

void Device::hold_back(const Chosen& chosen) {
    const auto is_chosen = [&chosen](std::uint32_t client) { return (chosen.clients >> client & 1) != 0; };
    for (Stream& stream : streams_)
        stream.held =
            stream.running && takes_gpu(stream.queue.front().work.kind) && !is_chosen(stream.client);
    running_.erase(std::remove_if(running_.begin(), running_.end(),
                                  [&](const Running& one) { return !is_chosen(one.client); }),
                   running_.end());
    for (Running& one : running_) {
        if (one.client != 0) one.share = std::min(chosen.share, share_of(chosen.share_permille, one.load));
    }
}

std::uint64_t Device::next_ns() {
    if (now_ns_ >= clock_changes_ns_) {
        clock_ = 1 + std::uniform_real_distribution<double>(-settings_.clock_swing,
                                                            settings_.clock_swing)(clocks_);
        clock_changes_ns_ = now_ns_ + kClockPeriodNs;
    }
    for (Gate& gate : gates_) {
        if (gate.changes_at_ns > now_ns_) continue;
        gate.seen = gate.next;
        gate.changes_at_ns = UINT64_MAX;
    }
    for (bool changed = true; changed;) {  // marks end as soon as they are reached, and let others go on
        changed = false;
        for (Stream& stream : streams_) {
            start(stream);
            if (stream.running && stream.remaining_ns <= 0) {
                finish(stream);
                changed = true;
            }
        }
    }
    running_.clear();
    std::uint64_t next = clock_changes_ns_;
    for (const Stream& stream : streams_) {
        if (!stream.running || !takes_gpu(stream.queue.front().work.kind)) continue;
        const Operation& head = stream.queue.front();
        const Standing& standing = standings_[stream.client];
        const double share = share_of(standing.share_permille, head.work.load);
        const std::uint64_t first_ns = stream.began_ns + settings_.block_ns;
        if (standing.prior && first_ns > now_ns_) next = std::min(next, first_ns);
        running_.push_back({stream.client, head.work.load, head.called_ns,
                            stream.remaining_ns < head.work.alone_ns, share,
                            standing.prior && first_ns <= now_ns_});
    }
    if (choice_) hold_back(choice_(running_));
    const double slow_first = slowdown(running_, true), slow = slowdown(running_);
    for (const Gate& gate : gates_) next = std::min(next, gate.changes_at_ns);
    auto running = running_.begin();
    for (Stream& stream : streams_) {
        if (stream.held) continue;
        if (stream.running) {
            const Kind kind = stream.queue.front().work.kind;
            if (takes_gpu(kind)) {
                stream.slow = kind != Kind::kKernel
                                  ? 1
                                  : (running->first ? slow_first : slow) / running->share / clock_;
                ++running;
            } else {
                stream.slow = 1;
            }
            const double ends_in = stream.remaining_ns * stream.slow;
            next = std::min(next, now_ns_ + static_cast<std::uint64_t>(std::ceil(ends_in)));
        } else if (!stream.queue.empty() && stream.starts_at_ns > now_ns_) {
            next = std::min(next, stream.starts_at_ns);
        }
    }
    return std::max(next, now_ns_ + 1);
}

void Device::pass_until(std::uint64_t time_ns) {
    const auto passed = static_cast<double>(time_ns - now_ns_);
    now_ns_ = time_ns;
    for (Stream& stream : streams_) {
        if (!stream.running || stream.held) continue;
        stream.remaining_ns -= passed / stream.slow;
        if (stream.remaining_ns < 0.5) {
            stream.remaining_ns = 0;
            finish(stream);
        }
    }
}

}  // namespace hostile
