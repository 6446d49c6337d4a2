#include "llmc/io/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "llmc/base/error.h"

void open_standard_descriptors() {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
        // all lower ones are open, so that open() returns this one
        if (::open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY) == descriptor) continue;
        const std::string reason = text("descriptor ", descriptor,
                                        " is closed, and /dev/null cannot be opened instead: ", std::strerror(errno),
                                        "\n  Start the program with its input, output and errors open.\n");
        (void)!::write(STDERR_FILENO, reason.data(), reason.size());   // it may be closed too
        ::_exit(static_cast<int>(ErrorKind::io));
    }
}
