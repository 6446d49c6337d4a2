// Lists the files that the inputs name: a folder stands for the files below it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// Counts what folders hold that is no input, by the reason ("hidden"); a folder counts once.
class PassedOver {
public:
    void add(const std::string& why, const std::string& path);
    void add(const PassedOver& later);

    // Returns "3 hidden (the first: a/.git); 1 leading nowhere (a/b)"; empty where nothing was passed over.
    std::string summary() const;

private:
    struct Group {
        std::uint64_t count = 0;
        std::string first;   // its path
    };
    std::map<std::string, Group> groups_;
};

struct InputFiles {
    std::vector<std::string> files;
    PassedOver passed_over;

    // Adds an input: a file, "-" or a folder, which stands for the regular files below it, in the order of their paths.
    // Links to folders are followed, and each folder is read once. Passed over are names that begin with a dot,
    // __pycache__, blobs and refs of Hugging Face's cache (snapshots beside them has the files), links that lead
    // nowhere, folders that were read already, and what is neither file nor folder; but the input itself is taken
    // whatever its name. Throws Error: io where it is not there or a folder cannot be read, usage where it has no file.
    void add(const std::string& input);
    // Adds every input that a file lists, one per line; "-": standard input. Error(io).
    void add_listed(const std::string& list);
    // Orders the files by a hash of their names.
    void shuffle();
};
