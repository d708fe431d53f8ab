// Slurm as the plugin sees it: what it answers, and what it was told.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/kernel/gate/check.hpp"

extern "C" {
#include <slurm/spank.h>
}

namespace fake_spank {

struct Option {
    std::string argument;
    int value;
    spank_opt_cb_f callback;
};

struct Slurm {
    spank_context_t context{S_CTX_REMOTE};
    std::map<std::string, std::string> environment;  // of the task
    std::map<std::string, std::string> control;      // of the job, as slurmctld gets it
    std::map<std::string, Option> options;
    std::vector<std::string> errors;  // logged
    bool refuses{false};              // all that it is told
};

extern Slurm slurm;

// What `--name` or `--name=text` makes the plugin do; its status.
int give(const std::string& name, const char* text = nullptr);

// slurm_spank_task_init with the words of plugstack.conf; its status.
int task_init(std::vector<std::string> words = {});

inline bool logged(const std::string& part) {
    for (const std::string& line : slurm.errors) {
        if (line.find(part) != std::string::npos) return true;
    }
    return false;
}

// In a process of its own, as Slurm does: the plugin keeps what it was given.
template <typename Test>
void in_process(spank_context_t context, const Test& test) {
    const pid_t child = fork();
    if (child == 0) {
        slurm = {};
        slurm.context = context;
        check::failures = 0;
        test();
        std::_Exit(check::result());
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace fake_spank
