#include "llmc/base/log.h"

#include <cstdarg>

namespace {

std::string format_list(const char* format, std::va_list list) {
    std::va_list again;
    va_copy(again, list);
    int length = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string result(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
    std::vsnprintf(result.data(), result.size() + 1, format, list);
    return result;
}

void put(std::FILE* file, const std::string& content) {
    std::fwrite(content.data(), 1, content.size(), file);   // a closed pipe is no reason to stop training
    std::fflush(file);
}

}   // namespace

void Log::line(const char* format, ...) const {
    if (out_ == nullptr) return;
    std::va_list list;
    va_start(list, format);
    put(out_, format_list(format, list) + "\n");
    va_end(list);
}

void Log::warning(const char* format, ...) const {
    if (err_ == nullptr) return;
    std::va_list list;
    va_start(list, format);
    put(err_, "warning: " + format_list(format, list) + "\n");
    va_end(list);
}

void Log::block(const std::string& lines) const {
    if (out_ != nullptr) put(out_, lines.ends_with('\n') ? lines : lines + "\n");
}

std::string formatted(const char* format, ...) {
    std::va_list list;
    va_start(list, format);
    std::string result = format_list(format, list);
    va_end(list);
    return result;
}
