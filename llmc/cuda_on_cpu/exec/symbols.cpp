#include "llmc/cuda_on_cpu/exec/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "llmc/cuda_on_cpu/exec/block.h"
#include "llmc/cuda_on_cpu/exec/grid.h"
#include "llmc/cuda_on_cpu/exec/kernel_fault.h"

namespace host {
namespace {

bool begins_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// Removes the signature: "void layernorm<float>(float*, int)" -> "layernorm<float>": up to the parameters, after the
// return type (which only templates have). Brackets nest, and "(anonymous namespace)" is part of a name.
std::string without_signature(const std::string& name) {
    static const std::string anonymous = "(anonymous namespace)";
    std::size_t begin = 0;
    int depth = 0;
    for (std::size_t i = 0; i < name.size(); i++) {
        if (name.compare(i, anonymous.size(), anonymous) == 0) {
            i += anonymous.size() - 1;
        } else if (name[i] == '<') {
            depth++;
        } else if (name[i] == '>') {
            depth--;
        } else if (depth == 0 && name[i] == ' ') {
            begin = i + 1;
        } else if (depth == 0 && name[i] == '(') {
            return name.substr(begin, i - begin);
        }
    }
    return name.substr(begin);
}

std::string demangled(const std::string& symbol) {
    int status = 0;
    char* readable = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
    std::string name = status == 0 ? without_signature(readable) : symbol;
    std::free(readable);
    return name;
}

// An ELF file's bytes; `at` is null outside of them.
struct Elf {
    const char* data;
    std::size_t bytes;
    template <class T>
    const T* at(std::size_t offset, std::size_t count = 1) const {
        if (offset > bytes || count > (bytes - offset) / sizeof(T)) return nullptr;
        return reinterpret_cast<const T*>(data + offset);
    }
};

// Returns true if a symbol may be static __shared__ memory. A mangled name "_ZZ..." names something inside a function.
// The stand-in's own are in namespace host; std's and doctest's are not kernels either.
bool may_be_shared(const std::string& name, const std::string& file) {
    if (!begins_with(name, "_ZZ")) return false;
    for (const char* other :
         {"_ZZN4host", "_ZZNK4host", "_ZZNSt", "_ZZNKSt", "_ZZSt", "_ZZN7doctest", "_ZZNK7doctest"}) {
        if (begins_with(name, other)) return false;
    }
    return file.empty() || file.find(".cu") != std::string::npos;   // known for file-local symbols
}

}   // namespace

const Symbols& Symbols::of_program() {
    static const Symbols symbols;
    return symbols;
}

Symbols::Symbols() {
    auto take_base = [](dl_phdr_info* info, std::size_t, void* self) {
        static_cast<Symbols*>(self)->base_ = info->dlpi_addr;
        return 1;   // the first is the program
    };
    dl_iterate_phdr(take_base, this);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0) return;
    if (fstat(file, &status) == 0) {
        auto bytes = static_cast<std::size_t>(status.st_size);
        void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);   // stays mapped: names point into it
        if (mapped != MAP_FAILED) read(static_cast<const char*>(mapped), bytes);
    }
    close(file);
}

void Symbols::read(const char* file, std::size_t bytes) {
    Elf elf{file, bytes};
    const auto* header = elf.at<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
    const auto* sections = elf.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (!sections) return;
    std::set<std::string> guards;
    std::ptrdiff_t anchor = -1;
    for (int i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr& table = sections[i];
        if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
        const Elf64_Shdr& names = sections[table.sh_link];
        std::size_t count = table.sh_size / sizeof(Elf64_Sym);
        const auto* symbols = elf.at<Elf64_Sym>(table.sh_offset, count);
        const char* text = elf.at<char>(names.sh_offset, names.sh_size);
        if (!symbols || !text || names.sh_size == 0 || text[names.sh_size - 1] != 0) return;
        const char* source = "";
        for (std::size_t s = 0; s < count; s++) {
            const Elf64_Sym& symbol = symbols[s];
            if (symbol.st_name >= names.sh_size) continue;
            const char* name = text + symbol.st_name;
            int type = ELF64_ST_TYPE(symbol.st_info);
            if (type == STT_FILE) source = name;
            if (type == STT_FUNC && symbol.st_shndx != SHN_UNDEF) functions_.push_back({symbol.st_value, name});
            if (type != STT_TLS) continue;
            bool local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
            if (std::strcmp(name, "host_thread_index") == 0) anchor = static_cast<std::ptrdiff_t>(symbol.st_value);
            if (begins_with(name, "_ZGVZ")) guards.insert(std::string("_Z") + (name + 4));
            if (!may_be_shared(name, local ? source : "")) continue;
            static_shared_.push_back({name, static_cast<std::ptrdiff_t>(symbol.st_value), symbol.st_size});
        }
    }
    std::sort(functions_.begin(), functions_.end(),
              [](const Function& a, const Function& b) { return a.offset < b.offset; });
    if (anchor < 0) static_shared_.clear();
    std::erase_if(static_shared_, [&](const ThreadLocal& variable) { return guards.count(variable.name) > 0; });
    for (ThreadLocal& variable : static_shared_) variable.offset -= anchor;
}

std::string Symbols::function(const void* address) const {
    std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(address) - base_;
    auto found = std::lower_bound(functions_.begin(), functions_.end(), offset,
                                  [](const Function& f, std::uintptr_t wanted) { return f.offset < wanted; });
    return found == functions_.end() || found->offset != offset ? "" : demangled(found->name);
}

const std::string& kernel_name(const void* kernel) {
    static std::mutex mutex;
    static std::map<const void*, std::string> known;   // a map, so that returned strings never move
    std::lock_guard<std::mutex> lock(mutex);
    auto found = known.find(kernel);
    if (found != known.end()) return found->second;
    std::string name = Symbols::of_program().function(kernel);
    if (name.empty()) name = "at " + hex(reinterpret_cast<std::uintptr_t>(kernel));
    return known[kernel] = name;
}

void fill_static_shared(unsigned char byte) {
    char* anchor = reinterpret_cast<char*>(&thread_index_storage);
    for (const Symbols::ThreadLocal& variable : Symbols::of_program().static_shared()) {
        std::memset(anchor + variable.offset, byte, variable.bytes);
    }
}

}   // namespace host
