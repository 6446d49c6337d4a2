// How options are declared: OptionGroup adds them to the parser, each with its default for --help and --print-config
// and a check of its value as it is read.
#pragma once

#include <CLI/CLI.hpp>

#include <array>
#include <charconv>
#include <string>
#include <type_traits>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/run/option_names.h"

// Error(usage) that also has the option and its value alone.
class WrongValue : public Error {
public:
    WrongValue(const std::string& flag, const std::string& value, const std::string& expected)
        : Error(ErrorKind::usage, text(flag, " ", value.empty() ? "(empty)" : value, ": expected ", expected),
                "`train_gpt --help` lists every option."),
          flag_(flag),
          value_(value) {}
    const std::string& flag() const { return flag_; }   // its long name, with dashes
    const std::string& value() const { return value_; }

private:
    std::string flag_, value_;
};

inline const Names<bool> kSwitch{{"0", false}, {"1", true}, {"false", false}, {"true", true}};

class OptionGroup {
public:
    OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

    CLI::Option* string(const std::string& names, std::string& target, const std::string& help) {
        auto spell = [&target] { return target; };
        return add(names, "TEXT", spell, help, [&target](const std::string& value) { target = value; });
    }

    template <class Number>
    CLI::Option* number(const std::string& names, Number& target, Number low, Number high, const std::string& help) {
        const std::string expected =
            text(std::is_integral_v<Number> ? "an integer from " : "a number from ", low, " to ", high);
        const std::string flag = long_name(names);
        auto read = [&target, low, high, expected, flag](const std::string& value) {
            Number parsed{};
            auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), parsed);
            bool whole = code == std::errc{} && end == value.data() + value.size();
            if (!whole || !(parsed >= low && parsed <= high))
                throw WrongValue(flag, value, expected);   // nan fails here too
            target = parsed;
        };
        auto spell = [&target] { return shortest(target); };
        return add(names, std::is_integral_v<Number> ? "INT" : "FLOAT", spell, help, read);
    }

    template <class Value>
    CLI::Option* choice(const std::string& names, Value& target, const Names<Value>& values, const std::string& help) {
        const std::string flag = long_name(names);
        auto read = [&target, &values, flag](const std::string& given) {
            for (const auto& [name, value] : values) {
                if (given == name) {
                    target = value;
                    return;
                }
            }
            throw WrongValue(flag, given, "one of " + list_of(values));
        };
        auto spell = [&target, &values] { return std::string(name_in(values, target)); };
        return add(names, list_of(values), spell, help, read);
    }

    // 0 or 1; the bare flag means 1.
    CLI::Option* on_off(const std::string& names, bool& target, const std::string& help) {
        return choice(names, target, kSwitch, help)->expected(0, 1)->type_name("0|1");
    }

    // One that another program serves better; `instead` says which.
    void elsewhere(const std::string& names, const std::string& only, const std::string& help,
                   const std::string& instead) {
        const std::string flag = long_name(names);
        auto read = [only, flag, instead](const std::string& value) {
            if (value == only) return;
            throw Error(
                ErrorKind::usage,
                text(flag, " ", value, ": not part of this program", only.empty() ? "" : text(", expected ", only)),
                instead);
        };
        add(
            names, "", [only] { return only; }, help + " (not served)", read)
            ->configurable(!only.empty())
            ->group("");   // not shown
    }

private:
    // As few digits as read back to the same value: 0.0003, not 0.000300000014.
    template <class Number>
    static std::string shortest(Number value) {
        std::array<char, 32> digits;
        return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
    }

    // `spell`: the value that is set, which the option's default string follows.
    template <class Spell, class Read>
    CLI::Option* add(const std::string& names, const std::string& type, Spell spell, const std::string& help,
                     Read read) {
        CLI::App& app = app_;
        auto read_and_spell = [&app, flag = long_name(names), spell, read](const std::string& value) {
            read(value);
            app.get_option_no_throw(flag)->default_str(spell());
        };
        return app_.add_option_function<std::string>(names, read_and_spell, in_lines(help))
            ->group(title_)
            ->default_str(spell())
            ->type_name(type)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);   // scripts override what they were given
    }
    // Lines of at most 90 characters, which with their margin fit 120 columns.
    static std::string in_lines(const std::string& words) {
        std::string lines;
        std::size_t begin = 0;   // of the line at hand
        while (words.size() - begin > 90) {
            const std::size_t end = words.rfind(' ', begin + 90);
            lines += words.substr(begin, end - begin) + "\n";
            begin = end + 1;
        }
        return lines + words.substr(begin);
    }
    static std::string long_name(const std::string& names) { return names.substr(0, names.find(',')); }

    CLI::App& app_;
    std::string title_;
};
