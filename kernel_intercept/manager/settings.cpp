#include "kernel_intercept/manager/settings.hpp"

#include <getopt.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>

namespace explsched::manager {

const char* const kUsage =
    "Usage: sexplkmd --dir DIR [OPTION]...\n"
    "Shares GPUs among the processes of one user that run with libexplsched_intercept.so.\n"
    "\n"
    "  --dir DIR              directory of the socket, made with mode 0700; clients find it through\n"
    "                         EXPLSCHED_KM_SOCKET=DIR/kernel-manager.sock\n"
    "  --policy group|quota   best-effort work waits for high-priority work (default), or shares by request "
    "and limit\n"
    "  --cap-compute X        best-effort clients whose kernels, with those of the high-priority clients,\n"
    "                         stay within this share of the SMs' throughput, 0.01..1 (default 0.95),\n"
    "  --cap-bandwidth X      and of the memory bandwidth (default 0.95), are tried beside them first\n"
    "  --hp-share X           accepted slowdown of high-priority work by best-effort work, as a fraction\n"
    "                         of its usual latency, 0..1 (default 0.06)\n"
    "  --profiles FILE        kernel profiles (default "
    "${XDG_CACHE_HOME:-~/.cache}/explsched/kernels-v1.tsv)\n"
    "  --foreground           do not detach; without it the command returns when the socket is ready\n"
    "  --status               print the state of the manager that serves DIR, one line of JSON\n"
    "  --version              print the installed release\n"
    "  --help                 print this\n"
    "\n"
    "Ends with 1 if it fails, 2 for a wrong command line, 3 if another manager serves DIR.\n";

namespace {

// The two below throw std::invalid_argument with what is accepted.
std::uint32_t permille(const char* text, double least) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= 1))
        throw std::invalid_argument("is a number from " + std::to_string(least) + " to 1.000000");
    return static_cast<std::uint32_t>(std::lround(value * 1000));
}

shared::Policy policy_named(const std::string& name) {
    if (name != "group" && name != "quota") throw std::invalid_argument("are group and quota");
    return name == "group" ? shared::Policy::kGroup : shared::Policy::kQuota;
}

constexpr int kFirst = 256;  // beyond what getopt returns of itself

struct Option {
    const char* name;
    int value;  // required_argument or no_argument
    void (*take)(CommandLine& line, const char* text);
};

const Option kOptions[] = {
    {"dir", required_argument, [](auto& line, auto* text) { line.settings.directory = text; }},
    {"policy", required_argument, [](auto& line, auto* text) { line.settings.policy = policy_named(text); }},
    {"cap-compute", required_argument,
     [](auto& line, auto* text) { line.settings.cap_compute_permille = permille(text, 0.01); }},
    {"cap-bandwidth", required_argument,
     [](auto& line, auto* text) { line.settings.cap_bandwidth_permille = permille(text, 0.01); }},
    {"hp-share", required_argument,
     [](auto& line, auto* text) { line.settings.high_share_permille = permille(text, 0); }},
    {"profiles", required_argument, [](auto& line, auto* text) { line.settings.profiles = text; }},
    {"foreground", no_argument, [](auto& line, auto*) { line.settings.foreground = true; }},
    {"status", no_argument, [](auto& line, auto*) { line.action = Action::kStatus; }},
    {"version", no_argument, [](auto& line, auto*) { line.action = Action::kVersion; }},
    {"help", no_argument, [](auto& line, auto*) { line.action = Action::kHelp; }},
};

std::string default_profiles_path() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    // The XDG base directory specification: a relative path is to be ignored.
    const std::string base =
        cache != nullptr && *cache == '/' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
    return base + "/explsched/kernels-v1.tsv";
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
    std::array<option, std::size(kOptions) + 1> options{};
    for (std::size_t i = 0; i < std::size(kOptions); ++i)
        options[i] = {kOptions[i].name, kOptions[i].value, nullptr, kFirst + static_cast<int>(i)};
    CommandLine line{Action::kServe, {}};
    Settings& settings = line.settings;
    optind = 0;  // start anew: tests parse several command lines in one process
    opterr = 0;
    for (int found = 0; (found = getopt_long(argc, argv, ":", options.data(), nullptr)) != -1;) {
        if (found < kFirst) {
            throw std::invalid_argument(std::string("option ") + argv[optind - 1] +
                                        (found == ':' ? ": a value is missing" : ": unknown; see --help"));
        }
        const Option& option = kOptions[found - kFirst];
        try {
            option.take(line, optarg);
        } catch (const std::invalid_argument& accepted) {
            throw std::invalid_argument(std::string("--") + option.name + ": found '" + optarg +
                                        "', accepted " + accepted.what());
        }
        if (line.action > Action::kStatus) return line;  // nothing else counts
    }
    if (optind < argc)
        throw std::invalid_argument(std::string("argument '") + argv[optind] + "': none is accepted");
    if (settings.directory.empty()) throw std::invalid_argument("--dir: missing; accepted is a directory");
    if (settings.profiles.empty()) settings.profiles = default_profiles_path();
    if (line.action == Action::kServe && !settings.foreground) {  // the daemon leaves its directory
        settings.directory = std::filesystem::absolute(settings.directory);
        settings.profiles = std::filesystem::absolute(settings.profiles);
    }
    if (socket_path(settings).size() >= 108) {
        throw std::invalid_argument("--dir: '" + settings.directory +
                                    "' is too long for a socket address of 107 bytes");
    }
    return line;
}

std::string socket_path(const Settings& settings) { return settings.directory + "/kernel-manager.sock"; }

}  // namespace explsched::manager
