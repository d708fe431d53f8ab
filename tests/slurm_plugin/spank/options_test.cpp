// What sbatch, srun and salloc take, and what they hand to slurmctld.

#include <optional>

#include "tests/slurm_plugin/spank/fake_spank.hpp"

extern "C" {
#include "slurm_plugin/spank/option.h"
}

using namespace fake_spank;

namespace {

int init() { return slurm_spank_init(nullptr, 0, nullptr); }
int submit() { return slurm_spank_init_post_opt(nullptr, 0, nullptr); }
const std::string& comment() { return slurm.control["EXPLSCHED_OPTIONS"]; }

// The canonical form of what is accepted.
std::optional<std::string> canonical(const std::string& name, const std::string& text) {
    for (std::size_t i = 0; i < expl_option_count; ++i) {
        char value[EXPL_VALUE_SIZE] = "";
        if (name != expl_options[i].name) continue;
        return expl_options[i].canonical(text.c_str(), value) ? std::optional<std::string>(value)
                                                              : std::nullopt;
    }
    std::abort();
}

bool refused(const std::string& name, const std::string& text) { return !canonical(name, text); }

void options_are_there_where_jobs_are_made_and_run_and_nowhere_else() {
    for (const spank_context_t context : {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
        in_process(context, [] {
            CHECK(init() == 0 && slurm.options.size() == expl_option_count);
            CHECK(slurm.options.at("expl-stop").argument.empty());
            CHECK(slurm.options.at("expl-sweep").argument == "NAME");
        });
    }
    for (const spank_context_t context : {S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_ERROR})
        in_process(context, [] { CHECK(init() == 0 && slurm.options.empty()); });
}

void what_slurm_refuses_is_logged_and_no_job_fails() {
    in_process(S_CTX_ALLOCATOR, [] {
        slurm.refuses = true;
        CHECK(init() == 0 && slurm.errors.size() == expl_option_count);
        CHECK(logged("option --expl-share cannot be registered"));
    });
    in_process(S_CTX_ALLOCATOR, [] {
        init();
        CHECK(give("expl-stop") == 0);
        slurm.refuses = true;
        CHECK(submit() == 0 && logged("the scheduler will not know of this job's options"));
    });
}

void nonsense_is_refused_with_what_is_accepted() {
    in_process(S_CTX_ALLOCATOR, [] {
        init();
        CHECK(give("expl-share", "most") == -1);
        CHECK(logged("--expl-share=most: accepted: high, best-effort"));
        CHECK(submit() == 0 && slurm.control.empty());
    });
}

void slurmctld_is_told_what_was_given_and_nothing_else() {
    in_process(S_CTX_LOCAL, [] {
        init();
        CHECK(give("expl-sweep", "a") == 0 && give("expl-stop") == 0);
        CHECK(give("expl-checkpoint", "SIGUSR1") == 0);
        CHECK(submit() == 0 && comment() == "sweep=a&checkpoint=USR1&stop=1" && slurm.errors.empty());
    });
    in_process(S_CTX_ALLOCATOR, [] {  // inside a job, which has options of its own
        slurm.control["EXPLSCHED_OPTIONS"] = "sweep=of-the-outer-job";
        init();
        CHECK(give("expl-stop") == 0 && submit() == 0 && comment() == "stop=1");
    });
    in_process(S_CTX_ALLOCATOR, [] {
        init();
        CHECK(submit() == 0 && slurm.control.empty());
    });
    in_process(S_CTX_REMOTE, [] {  // a step of the job: slurmctld knows
        init();
        CHECK(give("expl-stop") == 0 && submit() == 0 && slurm.control.empty());
    });
}

void the_last_option_wins_over_earlier_ones_and_over_the_variable() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("EXPLSCHED_SWEEP", "of-the-variable", 1);
        setenv("EXPLSCHED_METRIC", "accuracy", 1);
        setenv("EXPLSCHED_DIRECTION", "", 1);
        slurm.environment["EXPLSCHED_CLASS"] = "high";  // of a task, none of which is here
        init();
        give("expl-sweep", "first");
        give("expl-sweep", "second");
        CHECK(submit() == 0 && comment() == "sweep=second&metric=accuracy" && slurm.errors.empty());
    });
}

void a_variable_with_nonsense_is_told_and_ignored() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("EXPLSCHED_LIMIT", "2000", 1);
        setenv("EXPLSCHED_STOP", "1", 1);
        init();
        CHECK(submit() == 0 && comment() == "stop=1");
        CHECK(logged("EXPLSCHED_LIMIT=2000 is ignored: accepted: 0.001 to 1"));
    });
}

void shares_are_fractions_or_permille() {
    for (const char* name : {"expl-request", "expl-limit"}) {
        CHECK(canonical(name, "0.25") == "250" && canonical(name, "0.001") == "1");
        CHECK(canonical(name, "1") == "1000" && canonical(name, "1.0") == "1000");
        CHECK(canonical(name, "2") == "2" && canonical(name, "1000") == "1000");
        CHECK(canonical(name, "0.57") == "570" && canonical(name, "0.9999") == "1000");  // 0.57 * 1000 < 570
        for (const char* text : {"", "0", "0.0004", "1001", "1000.5", "99999999999999999999", "-1", "1e-1",
                                 "0x1", "inf", "nan", " 1", "0.5.", ".", "0.00000000000000000001"}) {
            CHECK(refused(name, text));
        }
    }
}

void sizes_are_a_range_of_gpus() {
    for (const char* text : {"1-2", "1-8", "8-32/8", "1-999999"})
        CHECK(canonical("expl-elastic", text) == text);
    for (const char* text : {"", "8", "8-8", "8-4", "0-8", "-1-8", "1--8", "1-8/", "1-8/0", "1-8/-2", "1-8x",
                             "1-8/2/2", "1-99999999", "000000000000000000001-2"}) {
        CHECK(refused("expl-elastic", text));
    }
}

void names_mean_nothing_in_a_query_or_a_path() {
    CHECK(canonical("expl-sweep", "Ab9_.@-") == "Ab9_.@-");
    CHECK(canonical("expl-sweep", std::string(64, 'x')) == std::string(64, 'x'));
    for (const char* text : {"", "a b", "a&b", "a=b", "a/b", "a%20", "a+b", "\xc3\xa4"})
        CHECK(refused("expl-sweep", text));
    CHECK(refused("expl-sweep", std::string(65, 'x')));
}

void words_are_those_of_a_list() {
    for (const char* text : {"USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG"}) {
        CHECK(canonical("expl-checkpoint", text) == text);
        CHECK(canonical("expl-checkpoint", std::string("SIG") + text) == text);
    }
    for (const char* text : {"KILL", "STOP", "CONT", "usr1", "10", "", "SIG"})
        CHECK(refused("expl-checkpoint", text));
    for (const char* text : {"high", "best-effort"}) CHECK(canonical("expl-share", text) == text);
    for (const char* text : {"guaranteed", "opportunistic"})
        CHECK(canonical("expl-policy-class", text) == text);
    for (const char* text : {"min", "max"}) CHECK(canonical("expl-direction", text) == text);
    for (const char* name : {"expl-share", "expl-policy-class", "expl-direction", "expl-stop"})
        for (const char* text : {"", "0", "High", "low", "mean"}) CHECK(refused(name, text));
}

// Each as long as it can be.
void all_options_together_fit_into_the_comment() {
    expl_values values{};
    std::string expected;
    for (std::size_t i = 0; i < expl_option_count; ++i) {
        std::string(EXPL_VALUE_SIZE - 1, 'x').copy(values.text[i], EXPL_VALUE_SIZE - 1);
        expected += (i > 0 ? "&" : "") + std::string(expl_options[i].key) + "=" + values.text[i];
    }
    std::string word(EXPL_OPTION_MAX * EXPL_VALUE_SIZE, '\0');
    CHECK(expl_comment_word(&values, word.data(), word.size()) && word.c_str() == expected);
    CHECK(expl_comment_word(&values, word.data(), expected.size() + 1));
    CHECK(!expl_comment_word(&values, word.data(), expected.size()));
}

}  // namespace

int main() {
    options_are_there_where_jobs_are_made_and_run_and_nowhere_else();
    what_slurm_refuses_is_logged_and_no_job_fails();
    nonsense_is_refused_with_what_is_accepted();
    slurmctld_is_told_what_was_given_and_nothing_else();
    the_last_option_wins_over_earlier_ones_and_over_the_variable();
    a_variable_with_nonsense_is_told_and_ignored();
    shares_are_fractions_or_permille();
    sizes_are_a_range_of_gpus();
    names_mean_nothing_in_a_query_or_a_path();
    words_are_those_of_a_list();
    all_options_together_fit_into_the_comment();
    return check::result();
}
