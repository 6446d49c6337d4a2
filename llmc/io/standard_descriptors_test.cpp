#include "llmc/io/standard_descriptors.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// In a child process that has closed the descriptors of a bit mask: which of 0, 1 and 2 then are not as they should be,
// as a bit mask; 8 if the next file gets one of them.
int wrong_in_child(unsigned closed) {
    const pid_t child = ::fork();   // which calls nothing that could wait for another thread
    if (child == 0) {
        struct stat null = {}, before[3] = {};
        unsigned wrong = ::stat("/dev/null", &null) == 0 ? 0 : 16;
        for (int i = 0; i < 3; i++) {
            ::fstat(i, &before[i]);
            if (closed >> i & 1) ::close(i);
        }
        open_standard_descriptors();
        for (int i = 0; i < 3; i++) {
            struct stat now = {};
            const struct stat& expected = closed >> i & 1 ? null : before[i];
            const int mode = ::fcntl(i, F_GETFL) & O_ACCMODE;
            const bool is_mode_right = (closed >> i & 1) == 0 || mode == (i == 0 ? O_RDONLY : O_WRONLY);
            const bool is_right = ::fstat(i, &now) == 0 && now.st_dev == expected.st_dev &&
                                  now.st_ino == expected.st_ino && is_mode_right;
            if (!is_right) wrong |= 1u << i;
        }
        if (::open("/dev/null", O_RDONLY) < 3) wrong |= 8;
        ::_exit(static_cast<int>(wrong));
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}   // namespace

TEST_CASE("standard_descriptors: those that are closed are opened on /dev/null, the others left as they are") {
    for (unsigned closed = 0; closed < 8; closed++) {
        INFO("closed, as bits: ", closed);
        CHECK(wrong_in_child(closed) == 0);
    }
}
