#include "llmc/tokenizer/input.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/byte_stream.h"
#include "llmc/tokenizer/added_tokens.h"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t batch_bytes = 1 << 20;
// A document that offers no safe cut, or is not UTF-8, is held in memory up to here and then cut anyway.
constexpr std::size_t max_part_bytes = 8 << 20;
// Patterns about which nothing is known need the whole document; a line of JSON must fit too.
constexpr std::size_t max_whole_bytes = 1 << 28;

// In bytes, as it is stored; nothing for what has no size (standard input, a pipe), or is not there, which opening it
// will tell.
std::optional<std::uint64_t> stored_size(const std::string& name) {
    std::error_code problem;
    if (name == "-" || !fs::is_regular_file(name, problem)) return std::nullopt;
    const std::uint64_t size = fs::file_size(name, problem);
    return problem ? std::nullopt : std::optional(size);
}
// As what it holds; nothing for what is compressed too.
std::optional<std::uint64_t> size_of(const std::string& name) {
    return uncompressed_name(name) == name ? stored_size(name) : std::nullopt;
}

}   // namespace

struct DocumentReader::State {
    State(const InputOptions& o, DocumentCuts c) : options(o), cuts(std::move(c)) {
        for (const std::string& name : options.files) {
            const auto size = stored_size(name);
            known_total = known_total && size;
            compressed = compressed || (size && !size_of(name));
            stored_before.push_back(stored_before.back() + size.value_or(0));
        }
    }
    const std::string& file_name() const { return options.files[file]; }

    void open_file() {
        stream = open_stream(file_name());
        const std::string name = uncompressed_name(file_name());
        end_of_file = false;
        offset = 0;
        buffer.clear();
        head = 0;
        in_document = false;
        bool named_jsonl = name.ends_with(".jsonl") || name.ends_with(".ndjson");
        jsonl = options.format == InputFormat::jsonl || (options.format == InputFormat::automatic && named_jsonl);
    }

    // Error(bad_data) where the file at hand is something else than text: it has NULs, or the mark of what has none.
    void check_text() {
        if (options.format != InputFormat::automatic) return;
        fill(4096);
        static constexpr std::pair<std::string_view, const char*> marks[] = {
            {"\x1f\x8b", "compressed by gzip, without .gz in its name"},
            {"\x28\xb5\x2f\xfd", "compressed by zstd, without .zst in its name"},
            {"\xfd"
             "7zXZ",
             "compressed by xz"},
            {"BZh", "compressed by bzip2"},
            {"PK\3\4", "a zip archive"},
            {"%PDF-", "a PDF"},
            {"\x89PNG", "a picture"},
            {"\xff\xd8\xff", "a picture"},
            {"\x7f"
             "ELF",
             "a program"},
            {"PAR1", "Parquet, which data/parquet_to_jsonl.py reads"}};
        const std::string_view begin = pending().substr(0, 4096);
        const char* what = begin.find('\0') != begin.npos ? "bytes that are 0" : nullptr;
        for (const auto& [mark, kind] : marks) what = begin.starts_with(mark) ? kind : what;
        if (what == nullptr) return;
        throw Error(ErrorKind::bad_data, text(file_name(), ": this is not text: ", what),
                    "Leave the file out; `--format text` takes it as it is.");
    }

    // What was read and not yet handed out.
    std::string_view pending() const { return std::string_view(buffer).substr(head); }

    // Reads until so many bytes are pending or the file ends.
    void fill(std::size_t wanted) {
        if (pending().size() >= wanted || end_of_file) return;
        buffer.erase(0, head);
        head = 0;
        std::size_t have = buffer.size();
        buffer.resize(wanted);
        while (have < wanted && !end_of_file) {
            const std::size_t count = stream->read(buffer.data() + have, wanted - have);
            end_of_file = count == 0;
            have += count;
        }
        buffer.resize(have);
    }

    // Hands out the first `count` pending bytes as a part, then drops `skip` more.
    void emit(InputBatch& batch, std::size_t count, bool ends_document, std::size_t skip = 0) {
        InputPart part;
        part.begin = batch.bytes.size();
        batch.bytes.append(pending().substr(0, count));
        part.end = batch.bytes.size();
        part.starts_document = !in_document;
        if (!in_document) documents++;
        part.document = documents - 1;
        part.file = static_cast<std::uint32_t>(file);
        part.offset = offset;
        batch.parts.push_back(part);
        in_document = !ends_document;
        drop(count + skip);
    }

    void drop(std::size_t count) {
        offset += count;
        read_bytes += count;
        head += count;
    }

    // True when a document of so many bytes is beyond the limit; then nothing more is read.
    bool over_limit(std::uint64_t document_bytes) {
        if (read_bytes + document_bytes <= options.max_bytes) return false;
        finished = true;
        return true;
    }

    bool next(InputBatch& batch);
    bool text_part(InputBatch& batch);
    bool delimited_documents(InputBatch& batch);
    std::size_t cut_of_pending() const;
    struct Span {
        std::size_t begin, count;
    };
    // What of a text that ends with a delimiter of so many bytes is the document; nothing: a blank line.
    Span document_within(std::string_view text, std::size_t delimiter_bytes) const {
        if (jsonl || !options.keep_separator) text.remove_suffix(delimiter_bytes);
        if (!jsonl && !options.strip) return {0, text.size()};
        const char* white = jsonl ? " \t\r" : " \t\n\v\f\r";
        const std::size_t begin = text.find_first_not_of(white);
        if (begin == text.npos) return {0, 0};
        return jsonl ? Span{0, text.size()} : Span{begin, text.find_last_not_of(white) + 1 - begin};
    }

    const InputOptions& options;
    DocumentCuts cuts;
    std::size_t file = 0;
    std::unique_ptr<ByteStream> stream;   // of the file at hand
    bool jsonl = false, end_of_file = false, in_document = false, finished = false;
    std::string buffer;   // the pending bytes begin at `head`
    std::size_t head = 0;
    std::uint64_t offset = 0;   // of the first pending byte in the file
    std::uint64_t read_bytes = 0, documents = 0;
    bool known_total = true, compressed = false;
    std::vector<std::uint64_t> stored_before{0};   // bytes of all files before each, and of all
};

bool DocumentReader::State::next(InputBatch& batch) {
    batch.bytes.clear();
    batch.parts.clear();
    while (!finished && file < options.files.size() && batch.bytes.size() < batch_bytes) {
        if (!stream) {
            std::error_code unknown;   // opening it will tell
            if (file_name() != "-" && fs::is_directory(file_name(), unknown)) {
                throw Error(ErrorKind::io, text(file_name(), " is a folder"));
            }
            open_file();
            const bool one_document = !jsonl && options.separator.empty();
            if (const auto size = size_of(file_name()); one_document && size && over_limit(*size)) break;
            check_text();
            if (!batch.parts.empty() && batch.jsonl != jsonl) break;   // one kind to a batch
        }
        batch.jsonl = jsonl;
        const bool more = jsonl || !options.separator.empty() ? delimited_documents(batch) : text_part(batch);
        if (!more || (end_of_file && pending().empty() && !in_document)) {
            stream.reset();
            file++;
        }
    }
    return !batch.parts.empty();
}

// The next part of a document that is a whole file; true.
bool DocumentReader::State::text_part(InputBatch& batch) {
    std::size_t wanted = batch_bytes;
    while (true) {
        fill(wanted + 1);                                          // one more, to know whether the file ends here
        if (read_bytes + pending().size() > options.max_bytes) {   // of a document whose size was not known before
            std::size_t count = options.max_bytes - read_bytes;
            for (int i = 0; i < 3 && count > 0 && (static_cast<unsigned char>(pending()[count]) & 0xc0) == 0x80; i++)
                count--;
            emit(batch, count, true);
            finished = true;
            return true;
        }
        if (end_of_file && pending().size() <= wanted) {
            emit(batch, pending().size(), true);
            return true;
        }
        if (std::size_t cut = cut_of_pending()) {
            emit(batch, cut, false);
            return true;
        }
        wanted *= 2;
    }
}

// Where to cut `pending`, which is not the end of its document; 0: more of it is needed.
std::size_t DocumentReader::State::cut_of_pending() const {
    if (cuts.anywhere) return pending().size();
    bool whole_needed = cuts.pattern.rule == SplitRule::regex || cuts.pattern.rule == SplitRule::none;
    if (whole_needed && pending().size() > max_whole_bytes) {
        throw Error(ErrorKind::bad_data,
                    text(file_name(), ": offset ", offset, ": a document of more than ", max_whole_bytes, " bytes"),
                    "The pattern of this tokenizer needs whole documents; give a --separator or smaller files.");
    }
    if (whole_needed) return 0;
    std::size_t cut = last_safe_cut(cuts.pattern, pending());
    if (cut > 0 && cuts.valid_parts && valid_utf8_prefix(pending().substr(0, cut)) < cut) cut = 0;
    if (cut > 0 || pending().size() < max_part_bytes) return cut;
    // no good place: at least not within a character
    cut = max_part_bytes;
    for (int i = 0; i < 3 && (static_cast<unsigned char>(pending()[cut]) & 0xc0) == 0x80; i++) cut--;
    return cut;
}

// Lines of JSON, or documents between separators; false when the limit is reached. One that is longer than
// max_whole_bytes is an error.
bool DocumentReader::State::delimited_documents(InputBatch& batch) {
    const std::string_view delimiter = jsonl ? std::string_view("\n") : options.separator;
    std::size_t searched = 0;
    while (true) {
        const std::size_t at = pending().find(delimiter, searched);
        const bool last = at == std::string_view::npos && end_of_file;
        if (at != std::string_view::npos || last) {
            const std::size_t delimiter_bytes = last ? 0 : delimiter.size();
            const std::size_t whole = (last ? pending().size() : at) + delimiter_bytes;
            const Span kept = document_within(pending().substr(0, whole), delimiter_bytes);
            if (kept.count > 0 && over_limit(kept.begin + kept.count)) return false;
            if (kept.count > 0) {
                drop(kept.begin);
                emit(batch, kept.count, true, whole - kept.begin - kept.count);
            } else {
                drop(whole);   // nothing between two delimiters
            }
            if (last || batch.bytes.size() >= batch_bytes) return true;
            searched = 0;
            continue;
        }
        searched = pending().size() - std::min(pending().size(), delimiter.size() - 1);
        if (pending().size() > max_whole_bytes) {
            throw Error(ErrorKind::bad_data,
                        text(file_name(), ": offset ", offset,
                             jsonl ? ": a line of more than " : ": no separator within ", max_whole_bytes, " bytes"),
                        jsonl ? "JSONL has one object per line; is this another format?" : "");
        }
        fill(pending().size() + batch_bytes);
    }
}

DocumentCuts cuts_for(const Tokenizer& tokenizer, EncodeOptions encoding) {
    DocumentCuts cuts;
    cuts.pattern = tokenizer.data().pattern;
    cuts.valid_parts = encoding.invalid == InvalidUtf8::tiktoken && !tokenizer.single_bytes();
    const AddedTokens added(tokenizer.data());
    if (!added.found_with(encoding.special)) {
        cuts.anywhere = tokenizer.single_bytes();
        return cuts;
    }
    // an added token must not be cut either
    if (tokenizer.single_bytes()) cuts.pattern.rule = SplitRule::gpt2;
    if (!added.stay_whole_before_space()) cuts.pattern.rule = SplitRule::none;
    return cuts;
}

DocumentReader::DocumentReader(InputOptions options, DocumentCuts cuts)
    : options_(std::move(options)), state_(std::make_unique<State>(options_, std::move(cuts))) {}
DocumentReader::~DocumentReader() = default;
bool DocumentReader::next(InputBatch& batch) { return state_->next(batch); }
InputPosition DocumentReader::position() const {
    const State& s = *state_;
    return {s.file, s.stream ? s.offset : 0, s.in_document, s.documents, s.read_bytes};
}
void DocumentReader::seek(const InputPosition& position) {
    State& s = *state_;
    s.file = position.file;
    s.documents = position.documents;
    s.read_bytes = position.bytes_read;
    if (position.offset == 0) return;
    s.open_file();
    s.stream->skip(position.offset);
    s.offset = position.offset;
    s.in_document = position.in_document;
}
std::uint64_t DocumentReader::bytes_read() const { return state_->read_bytes; }
std::uint64_t DocumentReader::bytes_total() const {
    const State& s = *state_;
    const std::uint64_t stored = s.stored_before.back();
    if (!s.known_total) return 0;
    if (!s.compressed) return std::min(stored, s.options.max_bytes);
    const std::uint64_t used = s.stored_before[s.file] + (s.stream ? s.stream->stored() : 0);
    if (used == 0) return 0;   // the rest is taken to be as compressed as what has been read
    const double total = static_cast<double>(s.read_bytes) * static_cast<double>(stored) / static_cast<double>(used);
    return std::min<std::uint64_t>(std::max(s.read_bytes, static_cast<std::uint64_t>(total)), s.options.max_bytes);
}
std::uint64_t DocumentReader::documents() const { return state_->documents; }
