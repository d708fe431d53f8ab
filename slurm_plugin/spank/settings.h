/* The words behind the plugin's name in plugstack.conf. */
#ifndef EXPLSCHED_SPANK_SETTINGS_H
#define EXPLSCHED_SPANK_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

struct expl_settings {
    const char *library;        /* the interposer; NULL: tasks are not gated */
    const char *manager_socket; /* of the kernel manager; %u in it stands for the user's number */
    const char *manager;        /* the program that is started for a user whom none serves; NULL: none is */
    const char *spool;          /* where jobs report progress */
    const char *mps_pipe_directory; /* of the node's MPS daemon */
};

/*
 * Reads `key=value` words. The settings point into the words. False for an unknown, repeated or empty key,
 * with a message of at most `size` bytes that names it and what is accepted.
 */
bool expl_settings_read(int count, char *const words[], struct expl_settings *settings, char *message,
                        size_t size);

#endif
