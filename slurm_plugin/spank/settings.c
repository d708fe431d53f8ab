#include "slurm_plugin/spank/settings.h"

#include <stdio.h>
#include <string.h>

bool expl_settings_read(int count, char *const words[], struct expl_settings *settings, char *message,
                        size_t size) {
    memset(settings, 0, sizeof *settings);
    struct {
        const char *key;
        const char **value;
    } const known[] = {
        {"library=", &settings->library},
        {"manager_socket=", &settings->manager_socket},
        {"manager=", &settings->manager},
        {"spool=", &settings->spool},
        {"mps_pipe_directory=", &settings->mps_pipe_directory},
    };
    for (int i = 0; i < count; i++) {
        const char **value = NULL;
        size_t length = 0;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            if (strncmp(words[i], known[k].key, strlen(known[k].key)) == 0) {
                value = known[k].value;
                length = strlen(known[k].key);
            }
        }
        if (value == NULL) {
            snprintf(
                message, size,
                "plugstack.conf: unknown word '%s' (accepted: library=, manager_socket=, manager=, spool=, "
                "mps_pipe_directory=)",
                words[i]);
            return false;
        }
        if (*value != NULL || words[i][length] != '/') {
            snprintf(message, size, "plugstack.conf: '%s': one absolute path is accepted", words[i]);
            return false;
        }
        *value = words[i] + length;
    }
    return true;
}
