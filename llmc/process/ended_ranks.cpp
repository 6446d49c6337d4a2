#include "llmc/process/ended_ranks.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "llmc/base/error.h"
#include "llmc/process/startup.h"

void throw_if_a_rank_has_ended(int rank, int ranks) {
    const char* const path = std::getenv("TRAIN_GPT_ENDED");
    if (path == nullptr) return;
    const LaunchEnvironment environment = read_launch_environment();
    if (environment.rank != rank || environment.ranks != ranks) return;
    std::ifstream file(path);
    int code = 0;
    std::string words;
    if (!(file >> code) || !std::getline(file >> std::ws, words) || file.eof()) return;   // a line has its end
    throw Error(code == 0 ? ErrorKind::no_device : ErrorKind::resumable, words + " at start-up, before all had met",
                "Look at that rank's own output for the reason. Only the first rank tells of a wrong option.");
}
