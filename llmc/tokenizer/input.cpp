#include "llmc/tokenizer/input.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/streams_ahead.h"
#include "llmc/tokenizer/added_tokens.h"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t batch_bytes = 1 << 20;
// A document that offers no safe cut, or is not UTF-8, is held in memory up to here and then cut anyway.
constexpr std::size_t max_part_bytes = 8 << 20;
// Patterns about which nothing is known need the whole document; a line of JSON must fit too.
constexpr std::size_t max_whole_bytes = 1 << 28;

// Returns the bytes of a file as stored; none for what has no size (standard input, a pipe), or is not there, which
// opening it will report.
std::optional<std::uint64_t> stored_size(const std::string& name) {
    std::error_code problem;
    if (name == "-" || !fs::is_regular_file(name, problem)) return std::nullopt;
    const std::uint64_t size = fs::file_size(name, problem);
    return problem ? std::nullopt : std::optional(size);
}

}   // namespace

struct DocumentReader::State {
    State(const InputOptions& o, DocumentCuts c, int threads)
        : options(o), cuts(std::move(c)), streams(o.files, threads) {
        for (const std::string& name : options.files) {
            const auto size = stored_size(name);
            known_total = known_total && size;
            compressed = compressed || (size && uncompressed_name(name) != name);
            stored_before.push_back(stored_before.back() + size.value_or(0));
        }
    }
    const std::string& file_name() const { return options.files[file]; }

    void open_file() {
        stream = streams.open(file);
        end_of_file = false;
        offset = 0;
        line = 1;
        buffer.clear();
        head = 0;
        in_document = false;
        fill(kind_bytes);
        if (file_name() == "-" && pending().empty()) {
            throw Error(ErrorKind::bad_data, "standard input is empty",
                        "What should write to it has probably failed; see its message.");
        }
        kind = kind_of_input(file_name(), pending(), options.format);
        if (json() && pending().starts_with(byte_order_mark)) drop(byte_order_mark.size());
        if (kind == InputKind::json_list) drop(pending().find('[') + 1);
        first_object = true;
        const std::string_view first_line = pending().substr(0, pending().find('\n'));
        const bool announced = kind == InputKind::json_lines && first_line == stream_begin;
        if (announced) drop(std::min(first_line.size() + 1, pending().size()));
        announcement = announced ? Announcement::open : Announcement::none;
    }

    // Opens the current file again, at a place where a batch had ended.
    void open_at(const InputPosition& position) {
        open_file();
        first_object = position.offset == offset;
        const std::uint64_t held = std::min<std::uint64_t>(position.offset - offset, pending().size());
        head += held;
        stream->skip(position.offset - offset - held);
        offset = position.offset;
        line = position.line;
        in_document = position.in_document;
    }

    bool json() const { return kind != InputKind::text; }

    // Returns true if the line, the first pending one, is a mark and no document. Throws Error(bad_data) where a stream
    // that is announced (stream_begin) is not whole.
    bool take_mark(std::string_view json_line);
    void check_end() const;   // throws likewise, where the file ends
    [[noreturn]] void bad_stream(const std::string& what) const;

    // Returns what was read and not yet handed out.
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
        part.line = json() ? line : 0;
        batch.parts.push_back(part);
        in_document = !ends_document;
        drop(count + skip);
    }

    void drop(std::size_t count) {
        if (json()) line += static_cast<std::uint64_t>(std::ranges::count(pending().substr(0, count), '\n'));
        offset += count;
        read_bytes += count;
        head += count;
    }

    // Returns true when a document of so many bytes is beyond the limit; then nothing more is read.
    bool over_limit(std::uint64_t document_bytes) {
        if (read_bytes + document_bytes <= options.max_bytes) return false;
        finished = true;
        return true;
    }

    bool next(InputBatch& batch);
    bool text_part(InputBatch& batch);
    bool delimited_documents(InputBatch& batch);
    bool list_objects(InputBatch& batch);
    void pass_over_white();
    [[noreturn]] void bad_list(const std::string& what) const;
    std::size_t cut_of_pending() const;
    struct Span {
        std::size_t begin, count;
    };
    // Returns the document in a text that ends with a delimiter of so many bytes; empty: a blank line.
    Span document_within(std::string_view text, std::size_t delimiter_bytes) const {
        if (json() || !options.keep_separator) text.remove_suffix(delimiter_bytes);
        if (!json() && !options.strip) return {0, text.size()};
        const char* white = json() ? " \t\r" : " \t\n\v\f\r";
        const std::size_t begin = text.find_first_not_of(white);
        if (begin == text.npos) return {0, 0};
        return json() ? Span{0, text.size()} : Span{begin, text.find_last_not_of(white) + 1 - begin};
    }

    const InputOptions& options;
    DocumentCuts cuts;
    StreamsAhead streams;
    std::size_t file = 0;
    std::unique_ptr<ByteStream> stream;   // the current file
    InputKind kind = InputKind::text;
    bool end_of_file = false, in_document = false, finished = false;
    bool first_object = true;   // no object of a list has been handed out
    // The stream of JSON lines that the file's first line announces: its last line is still to come, or has been read.
    // It is always open where a batch ends, so open_at() finds it so.
    enum class Announcement { none, open, whole } announcement = Announcement::none;
    std::string buffer;   // the pending bytes begin at `head`
    std::size_t head = 0;
    std::uint64_t offset = 0, line = 1;   // place of the first pending byte; lines are counted of JSON alone
    std::uint64_t read_bytes = 0, documents = 0;
    bool known_total = true, compressed = false;
    std::vector<std::uint64_t> stored_before{0};   // bytes of all files before each; last: of all
};

bool DocumentReader::State::next(InputBatch& batch) {
    batch.bytes.clear();
    batch.parts.clear();
    while (!finished && file < options.files.size() && batch.bytes.size() < batch_bytes) {
        if (!stream) {
            finished = read_bytes >= options.max_bytes;   // separators may have gone beyond
            if (finished) break;
            std::error_code unknown;   // opening it will tell
            if (file_name() != "-" && fs::is_directory(file_name(), unknown)) {
                throw Error(ErrorKind::io, text(file_name(), " is a folder"));
            }
            open_file();
            const bool one_document = !json() && options.separator.empty();
            compressed = compressed || stream->is_compressed();
            const auto size = stream->is_compressed() ? std::nullopt : stored_size(file_name());
            if (one_document && size && over_limit(*size)) break;
            if (!batch.parts.empty() && batch.json != json()) break;   // one kind to a batch
        }
        batch.json = json();
        const bool more = kind == InputKind::json_list           ? list_objects(batch)
                          : json() || !options.separator.empty() ? delimited_documents(batch)
                                                                 : text_part(batch);
        const bool ends = end_of_file && pending().empty() && !in_document;
        if (more && ends) check_end();
        if (!more || ends) {
            stream.reset();
            file++;
        }
    }
    return !batch.parts.empty();
}

// Hands out the next part of a document that is a whole file; returns true.
bool DocumentReader::State::text_part(InputBatch& batch) {
    std::size_t wanted = batch_bytes;
    while (true) {
        fill(wanted + 1);                                          // one more, to know whether the file ends here
        if (read_bytes + pending().size() > options.max_bytes) {   // its size was not known before
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

// Returns where to cut pending(), which does not reach the end of its document; 0: more of it is needed.
std::size_t DocumentReader::State::cut_of_pending() const {
    if (cuts.anywhere) return pending().size();
    bool whole_needed = needs_whole_texts(cuts.pattern);
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

// Hands out lines of JSON, or documents between separators; false when the limit is reached. A document of more than
// max_whole_bytes is an error.
bool DocumentReader::State::delimited_documents(InputBatch& batch) {
    const std::string_view delimiter = json() ? std::string_view("\n") : options.separator;
    std::size_t searched = 0;
    while (true) {
        const std::size_t at = pending().find(delimiter, searched);
        const bool last = at == std::string_view::npos && end_of_file;
        if (at != std::string_view::npos || last) {
            const std::size_t delimiter_bytes = last ? 0 : delimiter.size();
            const std::size_t whole = (last ? pending().size() : at) + delimiter_bytes;
            Span kept = document_within(pending().substr(0, whole), delimiter_bytes);
            if (json() && kept.count > 0 && take_mark(pending().substr(kept.begin, kept.count))) kept.count = 0;
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
                             json() ? ": a line of more than " : ": no separator within ", max_whole_bytes, " bytes"),
                        json() ? "JSONL has one object per line; is this another format?" : "");
        }
        fill(pending().size() + batch_bytes);
    }
}

bool DocumentReader::State::take_mark(std::string_view json_line) {
    const bool begins = json_line == stream_begin, ends = json_line == stream_end;
    if (begins && announcement == Announcement::open) bad_stream(text("it begins again before its ", stream_end));
    if (begins && announcement == Announcement::none) bad_stream("it begins behind other lines");
    if (ends && announcement == Announcement::none) bad_stream(text("it ends without a first line ", stream_begin));
    if (!begins && announcement == Announcement::whole) bad_stream(text("more follows its last line ", stream_end));
    if (begins || ends) announcement = begins ? Announcement::open : Announcement::whole;
    return begins || ends;
}

void DocumentReader::State::check_end() const {
    if (announcement == Announcement::open) bad_stream(text("it ends without its last line ", stream_end));
}

void DocumentReader::State::bad_stream(const std::string& what) const {
    throw Error(ErrorKind::bad_data,
                text(file_name(), ": line ", line, ", offset ", offset, ": this stream is not whole: ", what),
                "The program that wrote it has failed or was ended, or something between has changed its lines: see "
                "its message, and write it again. For a part of a stream give --max-bytes.");
}

// Hands out the objects of a list; false when the limit is reached.
bool DocumentReader::State::list_objects(InputBatch& batch) {
    while (batch.bytes.size() < batch_bytes) {
        pass_over_white();
        if (pending().starts_with(']')) {
            drop(1);
            pass_over_white();
            if (!pending().empty()) bad_list("more behind the list");
            return true;
        }
        if (!first_object) {
            if (!pending().starts_with(',')) bad_list("expected ',' or ']'");
            drop(1);
            pass_over_white();
        }
        if (!pending().starts_with('{')) bad_list("expected an object");
        ObjectEnd end;
        std::size_t count;
        while ((count = end.find(pending())) == std::string_view::npos) {
            if (end_of_file) bad_list("the file ends inside the object that begins here");
            if (pending().size() > max_whole_bytes)
                bad_list(text("an object of more than ", max_whole_bytes, " bytes"));
            fill(pending().size() + batch_bytes);
        }
        if (over_limit(count)) return false;
        emit(batch, count, true);
        first_object = false;
    }
    return true;
}

// Passes over white space between the objects of a list.
void DocumentReader::State::pass_over_white() {
    do {
        if (pending().empty()) fill(batch_bytes);
        drop(std::min(pending().find_first_not_of(" \t\r\n"), pending().size()));
    } while (pending().empty() && !end_of_file);
}

void DocumentReader::State::bad_list(const std::string& what) const {
    throw Error(ErrorKind::bad_data,
                text(file_name(), ": line ", line, ", offset ", offset, ": this is not a JSON list: ", what),
                text("A list is [{...}, {...}]; ",
                     options.skip_bad_lines ? "--skip-bad-lines passes over objects in it, and nothing else; " : "",
                     "`--format text` takes the file as text."));
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

DocumentReader::DocumentReader(InputOptions options, DocumentCuts cuts, int threads)
    : options_(std::move(options)), state_(std::make_unique<State>(options_, std::move(cuts), threads)) {}
DocumentReader::~DocumentReader() = default;
bool DocumentReader::next(InputBatch& batch) { return state_->next(batch); }
InputPosition DocumentReader::position() const {
    const State& s = *state_;
    return {s.file, s.stream ? s.offset : 0, s.stream ? s.line : 0, s.in_document, s.documents, s.read_bytes};
}
void DocumentReader::seek(const InputPosition& position) {
    State& s = *state_;
    s.file = position.file;
    if (position.offset > 0) s.open_at(position);
    s.documents = position.documents;
    s.read_bytes = position.bytes_read;
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

std::optional<std::string_view> text_of_object(const InputOptions& options, const InputBatch& batch,
                                               const InputPart& part, std::string& value, SkippedLines& skipped) {
    return json_text(std::string_view(batch.bytes).substr(part.begin, part.end - part.begin), options.field, value,
                     {options.files[part.file], part.line, part.offset}, options.skip_bad_lines ? &skipped : nullptr);
}
