// Writes event files for TensorBoard: `tensorboard --logdir FOLDER` reads the output folders of runs.
//
// The file is a TFRecord file: records of
//   uint64 length | uint32 masked CRC of these 8 bytes | length bytes | uint32 masked CRC of those
// little-endian; the CRC is CRC-32C (Castagnoli), masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8. Each record is a
// protobuf message Event (TensorFlow's event.proto and summary.proto):
//   1 wall_time double, 2 step int64, 3 file_version string (only the first, "brain.Event:2"),
//   5 summary: any number of 1 value: 1 tag string, 2 simple_value float
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/io/file.h"

class EventFile {
public:
    static constexpr const char* name = "events.out.tfevents.train_gpt";

    // Opens the file in `folder`, which must exist. Keeps those existing events, with their times, for whose step and
    // first tag `keep` returns true; drops a torn last one.
    using Keep = std::function<bool(int step, const std::string& tag)>;
    EventFile(FileSystem& files, const std::string& folder, const Keep& keep);

    struct Value {
        std::string tag;
        double value;
    };
    void add(int step, const std::vector<Value>& values);   // writes one event by one call
    void sync() { file_->sync(); }

private:
    std::unique_ptr<File> file_;
};

std::uint32_t crc32c(std::string_view bytes);
