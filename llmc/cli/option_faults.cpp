#include "llmc/cli/option_faults.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); i++) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); j++) {
            std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
        }
    }
    return row[b.size()];
}

struct Key {
    std::string name, line;
    std::string where;           // in front of a message
    const CLI::Option* option;   // null: there is none of this name
};

// Of a file for --config. None where it is a pipe, which has been read.
std::vector<Key> keys_of(const CLI::App& app, const std::string& path) {
    std::vector<Key> keys;
    if (!std::filesystem::is_regular_file(path)) return keys;
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); number++) {
        const std::size_t begin = line.find_first_not_of(" \t"), equals = line.find('=');
        if (begin == std::string::npos || equals == std::string::npos || line.find_first_of("#;[") == begin) continue;
        const std::string name = line.substr(begin, line.find_last_not_of(" \t", equals - 1) + 1 - begin);
        keys.push_back({name, line, text("--config ", path, ": line ", number, ": "),
                        app.get_option_no_throw((name.size() == 1 ? "-" : "--") + name)});
    }
    return keys;
}

}   // namespace

void unknown_option(const CLI::App& app, const std::string& given, const std::string& where) {
    std::string nearest;
    std::size_t distance = 4;
    for (const CLI::Option* option : app.get_options()) {
        std::string name = option->get_name();
        std::size_t d = edit_distance(given.substr(0, given.find('=')), name);
        if (d < distance) {
            distance = d;
            nearest = name;
        }
    }
    throw Error(ErrorKind::usage, text(where, given, ": unknown option"),
                nearest.empty() ? "`train_gpt --help` lists every option." : text("Did you mean ", nearest, "?"));
}

void refuse_option_of_others(const CLI::App& app, Verb verb, const std::vector<std::string>& of_others) {
    const std::string flag = app.remaining().front().substr(0, app.remaining().front().find('='));
    if (std::find(of_others.begin(), of_others.end(), flag) == of_others.end()) return;
    throw Error(ErrorKind::usage, text(flag, ": not an option of `train_gpt ", name_of(verb), "`"),
                text("`", app.get_name(), " --help` lists its options."));
}

void left_over(const CLI::App& app, const std::string& given) {
    std::error_code unknown;
    if (given.starts_with("-") || !std::filesystem::exists(given, unknown)) unknown_option(app, given, "");
    throw Error(ErrorKind::usage, text(given, ": this file follows no option"),
                "Was a pattern not quoted? The shell then puts all files it matches in its place, and an option takes "
                "one: write --train-data 'FOLDER/*train*.bin', with the quotes.");
}

void look_for_unknown_keys(const CLI::App& app, const std::string& path) {
    for (const Key& key : keys_of(app, path)) {
        if (key.option == nullptr) unknown_option(app, "--" + key.name, key.where);
        if (!key.option->get_configurable()) {
            throw Error(ErrorKind::usage, text(key.where, "--", key.name, ": only on the command line"),
                        "Remove this line.");
        }
    }
}

std::string where_in_config(const CLI::App& app, const std::string& path, const WrongValue& wrong) {
    std::string where;
    for (const Key& key : keys_of(app, path)) {
        if (key.option != app.get_option_no_throw(wrong.flag())) continue;
        if (key.line.find(wrong.value(), key.line.find('=')) != std::string::npos) where = key.where;
    }
    return where;
}

void check_config_file(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size(); i++) {
        std::string path;
        if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
        if (arguments[i].starts_with("--config=")) path = arguments[i].substr(std::string("--config=").size());
        std::error_code unknown;
        const std::filesystem::file_type type = std::filesystem::status(path, unknown).type();
        if (type != std::filesystem::file_type::character && type != std::filesystem::file_type::block &&
            type != std::filesystem::file_type::directory) {
            continue;
        }
        const char* what = type == std::filesystem::file_type::directory ? "folder" : "device";
        throw Error(ErrorKind::io, text("--config ", path, ": is a ", what, ", expected a file"),
                    "`train_gpt --print-config` writes one.");
    }
}
