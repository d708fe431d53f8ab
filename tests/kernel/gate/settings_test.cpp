// What the environment says about a process. A wrong value must not make a job more important than others.

#include "kernel_intercept/gate/settings.hpp"

#include <cstdlib>
#include <string>

#include "explsched/job_options.h"
#include "tests/kernel/gate/check.hpp"

using namespace explsched;
using gate::Settings;
using shared::Class;

namespace {

// The settings of an environment with this variable alone, or with none.
Settings with(const char* name = nullptr, const std::string& value = "") {
    for (const char* each : {"EXPLSCHED_KM_SOCKET", EXPL_SHARE_VARIABLE, EXPL_REQUEST_VARIABLE,
                             EXPL_LIMIT_VARIABLE, "SLURM_JOB_ID"}) {
        unsetenv(each);
    }
    if (name != nullptr) setenv(name, value.c_str(), 1);
    return gate::settings_of_environment();
}

void nothing_said_is_best_effort_without_a_limit() {
    const Settings settings = with();
    CHECK(settings.hello.priority == Class::kBestEffort && settings.socket_path[0] == '\0');
    CHECK(settings.hello.limit_permille == 1000 && settings.hello.request_permille == 1000 &&
          settings.hello.job[0] == '\0');
}

void only_high_is_high() {
    CHECK(with(EXPL_SHARE_VARIABLE, "high").hello.priority == Class::kHigh);
    for (const char* text : {"", "best-effort", "High", "highest", "high ", "1"})
        CHECK(with(EXPL_SHARE_VARIABLE, text).hello.priority == Class::kBestEffort);
}

void shares_are_fractions_and_others_count_as_unset() {
    CHECK(with(EXPL_REQUEST_VARIABLE, "0.001").hello.request_permille == 1);
    CHECK(with(EXPL_REQUEST_VARIABLE, "0.3").hello.request_permille == 300);
    CHECK(with(EXPL_LIMIT_VARIABLE, "1").hello.limit_permille == 1000);
    for (const char* text :
         {"", "0", "-5", "300", "1000", "1.5", "0.3x", "300x", "x", "99999999999999999999"}) {
        CHECK(with(EXPL_REQUEST_VARIABLE, text).hello.request_permille == 1000);
        CHECK(with(EXPL_LIMIT_VARIABLE, text).hello.limit_permille == 1000);
    }
}

// The manager refuses a client whose request exceeds its limit.
void the_limit_bounds_the_request() {
    CHECK(with(EXPL_LIMIT_VARIABLE, "0.2").hello.request_permille == 200);
    with(EXPL_LIMIT_VARIABLE, "0.2");
    setenv(EXPL_REQUEST_VARIABLE, "0.7", 1);
    CHECK(gate::settings_of_environment().hello.request_permille == 200);
    setenv(EXPL_REQUEST_VARIABLE, "0.1", 1);
    CHECK(gate::settings_of_environment().hello.request_permille == 100);
}

// Half of a path is another path.
void what_is_too_long_is_left_out() {
    const std::size_t room = with().socket_path.size() - 1;
    const std::string fits(room, 'x'), too_long(room + 1, 'x');
    CHECK(with("EXPLSCHED_KM_SOCKET", fits).socket_path.data() == fits);
    CHECK(with("EXPLSCHED_KM_SOCKET", too_long).socket_path[0] == '\0');
    CHECK(with("SLURM_JOB_ID", "4711").hello.job.data() == std::string("4711"));
    CHECK(with("SLURM_JOB_ID", std::string(64, '9')).hello.job[0] == '\0');
}

}  // namespace

int main() {
    nothing_said_is_best_effort_without_a_limit();
    only_high_is_high();
    shares_are_fractions_and_others_count_as_unset();
    the_limit_bounds_the_request();
    what_is_too_long_is_left_out();
    return check::result();
}
