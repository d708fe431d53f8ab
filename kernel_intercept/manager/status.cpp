#include <cstdio>

#include "kernel_intercept/manager/server.hpp"

namespace explsched::manager {

namespace {

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const unsigned char c : text) {
        char escaped[8];
        const bool is_special = c == '"' || c == '\\', is_printable = c >= 0x20 && c < 0x7f;
        std::snprintf(escaped, sizeof(escaped), is_special ? "\\%c" : is_printable ? "%c" : "\\u%04x", c);
        result += escaped;
    }
    return result + '"';
}

class Object {
   public:
    template <typename Number>
    Object& number(const char* name, Number value) {
        return text(name, std::to_string(value));
    }
    Object& string(const char* name, const std::string& value) { return text(name, quoted(value)); }
    Object& text(const char* name, const std::string& json) {
        body_ += (body_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + json;
        return *this;
    }
    std::string json() const { return "{" + body_ + "}"; }

   private:
    std::string body_;
};

std::string client(const Tenant& tenant, const Gpu& gpu, std::uint32_t index) {
    const auto get = [](const auto& word) { return word.load(std::memory_order_relaxed); };
    const shared::Slot& slot = gpu.page().slots[index];
    const shared::Progress progress = gpu.progress(index);
    return Object()
        .number("pid", tenant.pid)
        .string("job", tenant.job)
        .string("class", tenant.priority == shared::Class::kHigh ? "high" : "best-effort")
        .number("request_permille", tenant.request_permille)
        .number("limit_permille", tenant.limit_permille)
        .number("launches", get(slot.counters.launches))
        .number("gpu_ns", progress.issued_ns)
        .number("charged_ns", get(slot.counters.charged_ns))
        .number("credit_ns", get(slot.client.credit_ns))
        .number("outstanding_ns", progress.outstanding_ns())
        .number("latency_ns", gpu.latency_ns(index))
        .number("reports", get(slot.client.reports))
        .number("forced", get(slot.counters.forced))
        .number("collectives", get(slot.counters.collectives))
        .number("look_ups", get(slot.counters.look_ups))
        .number("routed", get(slot.counters.routed))
        .number("waits", get(slot.counters.waits))
        .number("waited_ns", get(slot.counters.waited_ns))
        .number("longest_wait_ns", get(slot.counters.longest_wait_ns))
        .number("passed", get(slot.counters.passed))
        .number("unmanaged", get(slot.counters.unmanaged))
        .number("drains", get(slot.counters.drains))
        .number("samples_dropped", get(slot.ring.dropped))
        .json();
}

std::string gpu_status(const std::string& uuid, const Gpu& gpu) {
    std::string clients;
    each_bit(gpu.page().control.occupied.load(), [&](std::uint32_t slot) {
        if (gpu.tenant(slot)) clients += (clients.empty() ? "" : ", ") + client(*gpu.tenant(slot), gpu, slot);
    });
    return Object()
        .string("uuid", uuid)
        .number("compute_capability", gpu.identity().compute_capability)
        .number("multiprocessors", gpu.identity().multiprocessors)
        .number("beat_interval_ns", gpu.page().control.beat_interval_ns.load())
        .number("waiting", gpu.page().control.waiting.load())
        .number("batch_ns", gpu.page().control.batch_ns.load())
        .number("best_effort_permille", gpu.best_effort_permille())
        .text("clients", "[" + clients + "]")
        .json();
}

}  // namespace

std::string Server::status() const {
    std::string gpus;
    for (const auto& [uuid, gpu] : gpus_) gpus += (gpus.empty() ? "" : ", ") + gpu_status(uuid, *gpu);
    return Object()
        .number("protocol", shared::kProtocolVersion)
        .number("pid", getpid())
        .string("policy", settings_.policy == shared::Policy::kGroup ? "group" : "quota")
        .number("cap_compute_permille", settings_.cap_compute_permille)
        .number("cap_bandwidth_permille", settings_.cap_bandwidth_permille)
        .number("hp_share_permille", settings_.high_share_permille)
        .text("gpus", "[" + gpus + "]")
        .text("profiles", Object()
                              .string("file", settings_.profiles)
                              .number("kernels", profiles_.size())
                              .number("samples", profiles_.samples())
                              .number("refused", profiles_.refused())
                              .number("bad_lines", keeper_.totals().faults)
                              .number("saves", keeper_.totals().saves)
                              .number("errors", keeper_.totals().errors)
                              .json())
        .text("connections", Object()
                                 .number("open", connections_.size())
                                 .number("accepted", totals_.accepted)
                                 .number("foreign", totals_.foreign)
                                 .number("malformed", totals_.malformed)
                                 .json())
        .json();
}

}  // namespace explsched::manager
