// Progress on a terminal (a pseudo-terminal here) and elsewhere.
#include "llmc/base/log.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "llmc/base/outlet.h"

namespace {

// Returns the output of a log on a terminal with `columns` columns.
template <class Body>
std::string on_terminal(unsigned short columns, Body body) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0);
    REQUIRE(grantpt(terminal) == 0);
    REQUIRE(unlockpt(terminal) == 0);
    std::FILE* out = std::fopen(ptsname(terminal), "w");
    REQUIRE(out != nullptr);
    const winsize size{24, columns, 0, 0};
    ioctl(terminal, TIOCSWINSZ, &size);
    {
        const Log log(true, out, out);
        body(log);
    }
    std::fclose(out);   // the output can be read until an error marks its end
    std::string all;
    char content[1000];
    for (ssize_t length; (length = read(terminal, content, sizeof content)) > 0;) all.append(content, content + length);
    close(terminal);
    return all;
}

// Returns the output of a log to a file.
template <class Body>
std::string in_file(Body body) {
    std::FILE* out = std::tmpfile();
    {
        const Log log(true, out, out);
        body(log);
    }
    char content[1000];
    std::rewind(out);
    const std::size_t length = std::fread(content, 1, sizeof content, out);
    std::fclose(out);
    return {content, length};
}

void three_steps(const Log& log) {
    log.progress("step 1, a long line", false);
    log.progress("step 2", true);
    log.line("val loss");
    log.progress("step 3", false);
}

struct WithTerm {
    explicit WithTerm(const char* kind) { setenv("TERM", kind, 1); }
    ~WithTerm() { unsetenv("TERM"); }
};

}   // namespace

TEST_CASE("log: on a terminal progress stays in place, other lines go below it") {
    const WithTerm term("xterm");
    CHECK(on_terminal(12, three_steps) == "\rstep 1, a l\x1b[K\rstep 2\x1b[K\r\nval loss\r\n\rstep 3\x1b[K\r\n");
}

TEST_CASE("log: elsewhere progress is what is due, a line each") {
    CHECK(in_file(three_steps) == "step 2\nval loss\n");
    const WithTerm term("dumb");
    CHECK(on_terminal(12, three_steps) == "step 2\r\nval loss\r\n");
}

TEST_CASE("log: what would move the cursor is shown, not obeyed") {
    const auto say = [](const Log& log) {
        log.line("a %s", "\x1b[2J\r");
        log.warning("%s", "\x07");
        log.block("one\ntwo\x1b\n");
        log.progress("three\x1b", true);
    };
    CHECK(in_file(say) == "a \\x1b[2J\\x0d\nwarning: \\x07\none\ntwo\\x1b\nthree\\x1b\n");
    CHECK(on_terminal(80, say).find("\x1b[2J") == std::string::npos);
}

TEST_CASE("log: a reader that does not read holds up nobody; what did not fit is counted, the rest comes in order") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    std::FILE* const out = fdopen(ends[1], "w");
    const std::string filler(1000, '.');
    const int lines = static_cast<int>(2 * kOutletBytes / filler.size());   // more than queue and pipe hold
    {
        const Log log(true, out, out);
        for (int i = 0; i < lines; i++) log.line("%d %s", i, filler.c_str());
    }
    std::FILE* const in = fdopen(ends[0], "r");
    char content[1100];
    int next = 0, left_out = 0;
    while (left_out == 0 && std::fgets(content, sizeof content, in) != nullptr) {
        if (std::sscanf(content, "warning: %d line(s) of output are left out here", &left_out) == 1) break;
        CHECK(std::atoi(content) == next);
        next++;
    }
    CHECK(next >= static_cast<int>(kOutletBytes / (filler.size() + 10)));
    CHECK(next + left_out == lines);
    put_text(out, "after it\n");
    CHECK(std::fgets(content, sizeof content, in) == std::string("after it\n"));
    std::fclose(out);
    CHECK(std::fgets(content, sizeof content, in) == nullptr);
    std::fclose(in);
}
