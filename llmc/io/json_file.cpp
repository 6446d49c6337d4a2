#include "llmc/io/json_file.h"

#include "llmc/base/error.h"

Json read_json_file(const FileSystem& files, const std::string& path) {
    try {
        Json json = parse_json(read_whole(files, path));
        if (json.is_object()) return json;
        throw Error(ErrorKind::bad_data, text(path, ": found ", quoted(json), ", expected a JSON object"));
    } catch (const JsonSyntaxError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": byte ", error.byte, ": not JSON: ", error.what()));
    }
}
