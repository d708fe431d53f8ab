#include "kernel_intercept/manager/settings.hpp"

#include <getopt.h>

#include <cmath>
#include <cstdlib>
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
    "  --hp-share X           how much longer high-priority work may take, for best-effort work that runs "
    "on\n"
    "                         when it begins, as a share of its usual latency, 0..1 (default 0.075)\n"
    "  --profiles FILE        kernel profiles (default "
    "${XDG_CACHE_HOME:-~/.cache}/explsched/kernels-v1.tsv)\n"
    "  --foreground           do not detach; without it the command returns when the socket is ready\n"
    "  --status               print the state of the manager that serves DIR, one line of JSON\n"
    "  --help                 print this\n";

namespace {

double number(const char* option, const char* text, double least, double most) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most)) {
        throw std::invalid_argument(std::string(option) + ": found '" + text +
                                    "', accepted is a number from " + std::to_string(least) + " to " +
                                    std::to_string(most));
    }
    return value;
}

std::uint32_t permille(const char* option, const char* text, double least) {
    return static_cast<std::uint32_t>(std::lround(number(option, text, least, 1) * 1000));
}

shared::Policy policy_named(const std::string& name) {
    if (name == "group") return shared::Policy::kGroup;
    if (name == "quota") return shared::Policy::kQuota;
    throw std::invalid_argument("--policy: found '" + name + "', accepted are group and quota");
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
    static const option options[] = {
        {"dir", required_argument, nullptr, 'd'},
        {"policy", required_argument, nullptr, 'p'},
        {"cap-compute", required_argument, nullptr, 'c'},
        {"cap-bandwidth", required_argument, nullptr, 'b'},
        {"hp-share", required_argument, nullptr, 's'},
        {"profiles", required_argument, nullptr, 'f'},
        {"foreground", no_argument, nullptr, 'n'},
        {"status", no_argument, nullptr, 'q'},
        {"help", no_argument, nullptr, 'h'},
        {nullptr, 0, nullptr, 0},
    };
    CommandLine line{Action::kServe, {}};
    Settings& settings = line.settings;
    optind = 0;  // start anew: tests parse several command lines in one process
    opterr = 0;
    for (int found = 0; (found = getopt_long(argc, argv, ":", options, nullptr)) != -1;) {
        switch (found) {
            case 'd':
                settings.directory = optarg;
                break;
            case 'p':
                settings.policy = policy_named(optarg);
                break;
            case 'c':
                settings.cap_compute_permille = permille("--cap-compute", optarg, 0.01);
                break;
            case 'b':
                settings.cap_bandwidth_permille = permille("--cap-bandwidth", optarg, 0.01);
                break;
            case 's':
                settings.high_share_permille = permille("--hp-share", optarg, 0);
                break;
            case 'f':
                settings.profiles = optarg;
                break;
            case 'n':
                settings.foreground = true;
                break;
            case 'q':
                line.action = Action::kStatus;
                break;
            case 'h':
                line.action = Action::kHelp;
                return line;
            default:
                throw std::invalid_argument(
                    std::string("option ") + argv[optind - 1] +
                    (found == ':' ? ": a value is missing" : ": unknown; see --help"));
        }
    }
    if (optind < argc)
        throw std::invalid_argument(std::string("argument '") + argv[optind] + "': none is accepted");
    if (settings.directory.empty()) throw std::invalid_argument("--dir: missing; accepted is a directory");
    if (socket_path(settings).size() >= 108) {
        throw std::invalid_argument("--dir: '" + settings.directory +
                                    "' is too long for a socket address of 107 bytes");
    }
    if (settings.profiles.empty()) settings.profiles = default_profiles_path();
    return line;
}

std::string socket_path(const Settings& settings) { return settings.directory + "/kernel-manager.sock"; }

std::string default_profiles_path() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    // The XDG base directory specification: a relative path is to be ignored.
    const std::string base =
        cache != nullptr && *cache == '/' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
    return base + "/explsched/kernels-v1.tsv";
}

}  // namespace explsched::manager
