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
        const bool accepted = expl_options[i].canonical(expl_options[i].choices, text.c_str(), value);
        return accepted ? std::optional<std::string>(value) : std::nullopt;
    }
    std::abort();
}

bool refused(const std::string& name, const std::string& text) { return !canonical(name, text); }

void options_are_there_where_jobs_are_made_and_run_and_nowhere_else() {
    for (const spank_context_t context : {S_CTX_LOCAL, S_CTX_ALLOCATOR, S_CTX_REMOTE}) {
        in_process(context, [] {
            CHECK(init() == 0 && slurm.options.size() == expl_option_count);
            CHECK(slurm.options.at("expl-early-stop").argument.empty());
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
        CHECK(give("expl-early-stop") == 0);
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
        CHECK(give("expl-sweep", "a b&c") == 0 && give("expl-early-stop") == 0);
        CHECK(give("expl-checkpoint", "SIGUSR1") == 0);
        CHECK(submit() == 0 && comment() == "sweep=a%20b%26c&checkpoint=USR1&early-stop=1");
        CHECK(slurm.errors.empty());
    });
    in_process(S_CTX_ALLOCATOR, [] {  // inside a job, which has options of its own
        slurm.control["EXPLSCHED_OPTIONS"] = "sweep=of-the-outer-job";
        init();
        CHECK(give("expl-early-stop") == 0 && submit() == 0 && comment() == "early-stop=1");
    });
    in_process(S_CTX_ALLOCATOR, [] {
        init();
        CHECK(submit() == 0 && slurm.control.empty());
    });
    in_process(S_CTX_REMOTE, [] {  // a step of the job: slurmctld knows
        init();
        CHECK(give("expl-early-stop") == 0 && submit() == 0 && slurm.control.empty());
    });
}

void the_last_option_wins_over_earlier_ones_and_over_the_variable() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("EXPLSCHED_SWEEP", "of-the-variable", 1);
        setenv("EXPLSCHED_METRIC", "accuracy", 1);
        setenv("EXPLSCHED_DIRECTION", "", 1);
        slurm.environment["EXPLSCHED_SHARE"] = "high";  // of a task, none of which is here
        init();
        give("expl-sweep", "first");
        give("expl-sweep", "second");
        CHECK(submit() == 0 && comment() == "sweep=second&metric=accuracy" && slurm.errors.empty());
    });
}

void a_variable_with_nonsense_is_told_and_ignored() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("EXPLSCHED_LIMIT", "2000", 1);
        setenv("EXPLSCHED_EARLY_STOP", "1", 1);
        init();
        CHECK(submit() == 0 && comment() == "early-stop=1");
        CHECK(logged("EXPLSCHED_LIMIT=2000 is ignored: accepted: 0.001 to 1"));
    });
}

void a_job_does_not_consent_for_those_that_it_submits() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("SLURM_JOB_ID", "7", 1);
        setenv("EXPLSCHED_CHECKPOINT", "USR1", 1);
        setenv("EXPLSCHED_EARLY_STOP", "1", 1);
        setenv("EXPLSCHED_ELASTIC", "1-4", 1);
        setenv("EXPLSCHED_SWEEP", "s", 1);
        // As Slurm hands them to salloc's command, and to sbatch's script.
        setenv("_SLURM_SPANK_OPTION_explsched_expl_early_stop", "1", 1);
        setenv("SLURM_SPANK__SLURM_SPANK_OPTION_explsched_expl_early_stop", "1", 1);
        setenv("SLURM_SPANK_EXPLSCHED_OPTIONS", "early-stop=1", 1);
        init();
        for (const char* option :
             {"_SLURM_SPANK_OPTION_explsched_expl_early_stop", "SLURM_SPANK_EXPLSCHED_OPTIONS",
              "SLURM_SPANK__SLURM_SPANK_OPTION_explsched_expl_early_stop"}) {
            CHECK(getenv(option) == nullptr);
        }
        CHECK(submit() == 0 && comment() == "sweep=s");
        CHECK(give("expl-checkpoint", "USR2") == 0 && submit() == 0);
        CHECK(comment() == "sweep=s&checkpoint=USR2");
    });
    in_process(S_CTX_ALLOCATOR, [] {
        unsetenv("SLURM_JOB_ID");
        setenv("EXPLSCHED_CHECKPOINT", "USR1", 1);
        init();
        CHECK(submit() == 0 && comment() == "checkpoint=USR1");
    });
}

void shares_are_fractions() {
    for (const char* name : {"expl-request", "expl-limit"}) {
        CHECK(canonical(name, "0.25") == "0.25" && canonical(name, "0.001") == "0.001");
        CHECK(canonical(name, "1") == "1" && canonical(name, "1.0") == "1" && canonical(name, ".5") == "0.5");
        CHECK(canonical(name, "0.57") == "0.57" && canonical(name, "0.9999") == "1");
        for (const char* text :
             {"", "0", "0.0004", "2", "300", "1000", "1000.5", "1.5", "99999999999999999999", "-1", "1e-1",
              "0x1", "inf", "nan", " 1", "0.5.", ".", "0.00000000000000000001"}) {
            CHECK(refused(name, text));
        }
    }
}

void sizes_are_a_range_of_gpus() {
    for (const char* text : {"1-2", "1-8", "8-32/8", "1-100000"})
        CHECK(canonical("expl-elastic", text) == text);
    for (const char* text : {"", "8", "8-8", "8-4", "0-8", "-1-8", "1--8", "1-8/", "1-8/0", "1-8/-2", "1-8x",
                             "1-8/2/2", "2-7/2", "1-100001", "1-99999999", "000000000000000000001-2"}) {
        CHECK(refused("expl-elastic", text));
    }
}

void stages_are_milliseconds() {
    for (const char* text : {"110/60/45/5", "110/60/45.5/0", "0.5/0/0/0.000001", "999999999/1/1/1"})
        CHECK(canonical("expl-stages", text) == text);
    for (const char* text :
         {"", "1", "1/2/3", "1/2/3/4/5", "1/2/3/", "/1/2/3", "0/1/1/1", "1/0/0.0/0", "1/-1/1/1", "1/nan/1/1",
          "1/1e2/1/1", "1./1/1/1", ".5/1/1/1", "1/1/1/1 ", "1000000000/1/1/1", "0.0000001/1/1/1"}) {
        CHECK(refused("expl-stages", text));
    }
}

void parameters_are_pairs() {
    for (const char* text : {"lr=0.1", "lr=0.1,width=64", "_a.b/c-d=", "a=b=c,d=a b", "lr=\xc3\xa4"})
        CHECK(canonical("expl-params", text) == text);
    for (const char* text :
         {"", "lr", "=1", "lr=1,", ",lr=1", "1a=2", "-a=2", "l r=1", "lr=1,,b=2", "lr=\n", "\xc3\xa4=1"})
        CHECK(refused("expl-params", text));
    CHECK(!refused("expl-params", "k=" + std::string(510, 'v')));
    CHECK(refused("expl-params", "k=" + std::string(511, 'v')));
    CHECK(refused("expl-params", std::string(129, 'k') + "=1"));
}

void names_are_any_text_without_control_characters() {
    for (const char* text : {"Ab9_.@-", "eval/loss", "a b", "a&b=%20+c", "\xc3\xa4"})
        CHECK(canonical("expl-sweep", text) == text);
    CHECK(canonical("expl-sweep", std::string(128, 'x')) == std::string(128, 'x'));
    for (const char* text : {"", "a\nb", "\x1b[2J", "\x7f"}) CHECK(refused("expl-sweep", text));
    CHECK(refused("expl-sweep", std::string(129, 'x')));
}

// What a terminal in Latin-1 sends would make the whole comment unreadable.
void text_is_utf_8() {
    for (const char* text : {"\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                             "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "M\xc3\xbcller"}) {
        CHECK(canonical("expl-sweep", text) == text);
        CHECK(canonical("expl-params", std::string("a=") + text) == std::string("a=") + text);
    }
    for (const char* text :
         {"M\xfcller", "\xc3", "\xc3x", "\xe2\x82", "\xf0\x9f\x98", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf",
          "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80",
          "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe", "\xff"}) {
        CHECK(refused("expl-sweep", text) && refused("expl-params", std::string("lr=") + text));
    }
}

void a_job_keeps_its_options_beside_a_variable_that_is_no_utf_8() {
    in_process(S_CTX_ALLOCATOR, [] {
        setenv("EXPLSCHED_SWEEP", "M\xfcller", 1);
        init();
        CHECK(give("expl-checkpoint", "USR1") == 0);
        CHECK(submit() == 0 && comment() == "checkpoint=USR1");
        CHECK(logged("is ignored: accepted: 1 to 128 bytes of UTF-8 text without control characters"));
    });
}

void words_are_those_of_a_list() {
    for (const char* text : {"USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "ALRM", "URG"}) {
        CHECK(canonical("expl-checkpoint", text) == text);
        CHECK(canonical("expl-checkpoint", std::string("SIG") + text) == text);
    }
    CHECK(canonical("expl-checkpoint", "sigusr2") == "USR2");
    for (const char* text : {"KILL", "STOP", "CONT", "USR", "10", "", "SIG"})
        CHECK(refused("expl-checkpoint", text));
    for (const char* text : {"high", "best-effort"}) CHECK(canonical("expl-share", text) == text);
    for (const char* text : {"guaranteed", "opportunistic"}) CHECK(canonical("expl-job-class", text) == text);
    for (const char* text : {"min", "max"}) CHECK(canonical("expl-direction", text) == text);
    for (const char* text : {"0", "1"}) CHECK(canonical("expl-early-stop", text) == text);
    for (const char* name : {"expl-share", "expl-job-class", "expl-direction", "expl-early-stop"})
        for (const char* text : {"", "2", "High", "low", "mean"}) CHECK(refused(name, text));
}

// Each as long as it can be, in characters that take most room.
void all_options_together_fit_into_the_comment() {
    expl_values values{};
    std::string expected;
    for (std::size_t i = 0; i < expl_option_count; ++i) {
        expected += (i > 0 ? "&" : "") + std::string(expl_options[i].key) + "=";
        for (int n = 0; n < EXPL_VALUE_SIZE - 1; ++n) {
            values.text[i][n] = '%';
            expected += "%25";
        }
    }
    std::string word(EXPL_WORD_SIZE, '\0');
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
    a_job_does_not_consent_for_those_that_it_submits();
    shares_are_fractions();
    sizes_are_a_range_of_gpus();
    stages_are_milliseconds();
    parameters_are_pairs();
    names_are_any_text_without_control_characters();
    text_is_utf_8();
    a_job_keeps_its_options_beside_a_variable_that_is_no_utf_8();
    words_are_those_of_a_list();
    all_options_together_fit_into_the_comment();
    return check::result();
}
