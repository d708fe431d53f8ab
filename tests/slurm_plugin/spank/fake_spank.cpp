#include "tests/slurm_plugin/spank/fake_spank.hpp"

#include <cstdarg>
#include <cstdio>

namespace fake_spank {

Slurm slurm;

int give(const std::string& name, const char* text) {
    const Option& option = slurm.options.at(name);
    return option.callback(option.value, text, slurm.context == S_CTX_REMOTE ? 1 : 0);
}

int task_init(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return slurm_spank_task_init(nullptr, static_cast<int>(words.size()), arguments.data());
}

static std::string formatted(const char* format, va_list arguments) {
    char text[1024];
    std::vsnprintf(text, sizeof(text), format, arguments);
    return text;
}

}  // namespace fake_spank

using fake_spank::formatted;
using fake_spank::slurm;

constexpr auto kSuccess = static_cast<spank_err_t>(ESPANK_SUCCESS);  // an int in some releases

extern "C" {

spank_context_t spank_context(void) { return slurm.context; }

spank_err_t spank_option_register(spank_t, struct spank_option* option) {
    if (slurm.refuses) return ESPANK_BAD_ARG;
    slurm.options[option->name] = {option->has_arg != 0 ? option->arginfo : "", option->val, option->cb};
    return kSuccess;
}

// As in slurmstepd: what does not fit is cut.
spank_err_t spank_getenv(spank_t, const char* name, char* buffer, int length) {
    const auto found = slurm.environment.find(name);
    if (found == slurm.environment.end()) return ESPANK_ENV_NOEXIST;
    const int written = std::snprintf(buffer, static_cast<std::size_t>(length), "%s", found->second.c_str());
    return written < length ? kSuccess : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t, const char* name, const char* value, int overwrite) {
    if (slurm.refuses) return ESPANK_BAD_ARG;
    if (overwrite == 0 && slurm.environment.count(name) != 0) return ESPANK_ENV_EXISTS;
    slurm.environment[name] = value;
    return kSuccess;
}

spank_err_t spank_job_control_setenv(spank_t, const char* name, const char* value, int overwrite) {
    if (slurm.refuses) return ESPANK_NOT_LOCAL;
    if (overwrite == 0 && slurm.control.count(name) != 0) return ESPANK_ENV_EXISTS;
    slurm.control[name] = value;
    return kSuccess;
}

const char* spank_strerror(spank_err_t) { return "refused"; }

void slurm_error(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    slurm.errors.push_back(formatted(format, arguments));
    va_end(arguments);
}

}  // extern "C"
