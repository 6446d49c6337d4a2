// The names of kernels, read from the symbol table of the running program: a function pointer is all a launch has.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/host/exec_fault.h"
#include "llmc/host/exec_grid.h"

namespace host {
namespace {

// "void layernorm<float>(float*, int)" -> "layernorm<float>"
std::string without_signature(std::string name) {
    int angles = 0;
    for (std::size_t i = 0; i < name.size(); i++) {
        if (name[i] == '<') angles++;
        if (name[i] == '>') angles--;
        if (name[i] == '(' && angles == 0 && name.compare(i, 20, "(anonymous namespace)", 20) != 0) {
            name.resize(i);
            break;
        }
    }
    std::size_t start = 0;
    angles = 0;
    for (std::size_t i = 0; i < name.size(); i++) {   // a template's name begins with its return type
        if (name[i] == '<') angles++;
        if (name[i] == '>') angles--;
        bool in_anonymous = name.compare(i, 11, " namespace)") == 0;
        if (name[i] == ' ' && angles == 0 && !in_anonymous) start = i + 1;
    }
    return name.substr(start);
}

std::string demangled(const char* symbol) {
    int status = 0;
    char* readable = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    std::string name = status == 0 ? without_signature(readable) : symbol;
    std::free(readable);
    return name;
}

class Symbols {
public:
    Symbols() {
        std::ifstream file("/proc/self/exe", std::ios::binary);
        bytes_.assign(std::istreambuf_iterator<char>(file), {});
        dl_iterate_phdr(
            [](dl_phdr_info* info, std::size_t, void* self) {
                static_cast<Symbols*>(self)->base_ = info->dlpi_addr;   // the first is the program
                return 1;
            },
            this);
        read_functions();
        bytes_ = {};
    }

    // Empty if the program was stripped.
    std::string name(const void* function) const {
        auto found = functions_.find(reinterpret_cast<std::uintptr_t>(function) - base_);
        return found == functions_.end() ? "" : demangled(found->second.c_str());
    }

private:
    template <class T>
    const T* at(std::size_t offset, std::size_t count = 1) const {
        if (offset > bytes_.size() || count > (bytes_.size() - offset) / sizeof(T)) return nullptr;
        return reinterpret_cast<const T*>(bytes_.data() + offset);
    }

    void read_functions() {
        const auto* header = at<Elf64_Ehdr>(0);
        if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
        const auto* sections = at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
        if (!sections) return;
        for (int i = 0; i < header->e_shnum; i++) {
            const Elf64_Shdr& table = sections[i];
            if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
            const Elf64_Shdr& names = sections[table.sh_link];
            std::size_t count = table.sh_size / sizeof(Elf64_Sym);
            const auto* symbols = at<Elf64_Sym>(table.sh_offset, count);
            if (!symbols || !at<char>(names.sh_offset, names.sh_size)) return;
            for (std::size_t s = 0; s < count; s++) {
                if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC || symbols[s].st_name >= names.sh_size) continue;
                functions_.emplace(symbols[s].st_value, bytes_.data() + names.sh_offset + symbols[s].st_name);
            }
        }
    }

    std::vector<char> bytes_;
    std::uintptr_t base_ = 0;
    std::map<std::uintptr_t, std::string> functions_;
};

}   // namespace

std::string kernel_name(const void* kernel) {
    static std::mutex mutex;
    static std::map<const void*, std::string> known;
    std::lock_guard<std::mutex> lock(mutex);
    auto found = known.find(kernel);
    if (found != known.end()) return found->second;
    static const Symbols symbols;
    std::string name = symbols.name(kernel);
    if (name.empty()) name = "at " + hex(reinterpret_cast<std::uintptr_t>(kernel));
    return known[kernel] = name;
}

}   // namespace host
