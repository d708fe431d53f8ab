#include "tests/kernel/fakecuda/gpu/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace fakecuda::gpu {
namespace {

std::string line(const EndedKernel& kernel) {
    const Task& task = kernel.task;
    std::string text = std::to_string(kernel.pid) + ',' + task.work.name.data();
    for (const long long field :
         {static_cast<long long>(kernel.stream), static_cast<long long>(task.admitted_ns),
          static_cast<long long>(task.started_ns), static_cast<long long>(kernel.ended_ns),
          static_cast<long long>(task.work.compute_permille),
          static_cast<long long>(task.work.bandwidth_permille),
          static_cast<long long>(task.running_compute_permille),
          static_cast<long long>(task.running_bandwidth_permille), static_cast<long long>(task.called_ns)}) {
        text += ',' + std::to_string(field);
    }
    return text + '\n';
}

}  // namespace

Log::Log(const std::string& path) : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
}

Log::~Log() { close(fd_); }

void Log::append(const std::vector<EndedKernel>& ended) const {
    if (ended.empty()) return;
    std::string text;
    for (const EndedKernel& kernel : ended) text += line(kernel);
    if (write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        throw std::system_error(errno, std::generic_category(), "log of the virtual GPU");
    }
}

}  // namespace fakecuda::gpu
