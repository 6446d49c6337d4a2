#include "llmc/process/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

const in6_addr& ip6_of(const sockaddr* address) { return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr; }

bool is_ip6(const std::string& host) {   // with or without an interface
    in6_addr parsed;
    return inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &parsed) == 1;
}

int read_port(const std::string& digits) {   // 0: it is none
    const bool is_number = !digits.empty() && digits.size() <= 5 &&
                           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    const int port = is_number ? std::stoi(digits) : 0;
    return port <= 65535 ? port : 0;
}

// Returns why no resolver can ever know a host of this name; empty where one may.
std::string fault_of_name(const std::string& host) {
    auto is_of_name = [](char c) {   // names that are not in English have bytes above those of ASCII
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || (c & 0x80) != 0;
    };
    const auto strange = std::ranges::find_if_not(host, is_of_name);
    if (strange != host.end()) return text("a host's name has no '", *strange, "' in it");
    if (host.starts_with('.') || host.find("..") != std::string::npos) return "a part of the name is empty";
    in_addr parsed;
    const bool is_number = host.find_first_not_of("0123456789.") == std::string::npos;
    if (is_number && inet_aton(host.c_str(), &parsed) == 0) return text(host, " is no IPv4 address");
    std::size_t longest = 0;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = host.find('.', begin);
        longest = std::max(longest, std::min(end, host.size()) - begin);
    }
    if (longest > 63 || host.size() > 254) return "the name is longer than a name server takes";
    return "";
}

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
    throw Error(ErrorKind::usage, text("the address of rank 0 is ", source, ": ", why),
                "Expected HOST:PORT, for example node1:29500, 192.0.2.1:29500 or [2001:db8::1]:29500.");
}

}   // namespace

std::string Address::host() const {
    char digits[NI_MAXHOST] = {};
    if (family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&ip6_of(get()))) {
        inet_ntop(AF_INET, ip6_of(get()).s6_addr + 12, digits, sizeof digits);
    } else if (family() == AF_INET || family() == AF_INET6) {
        getnameinfo(get(), size, digits, sizeof digits, nullptr, 0, NI_NUMERICHOST);
    }
    return digits;
}

int Address::port() const {   // it stands at the same place in both kinds
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Resolution resolve(const std::string& host, int port) {
    Resolution result;
    if (host == "localhost") {
        for (const char* digits : kLoopbackHosts) result.addresses.push_back(resolve(digits, port).addresses.at(0));
        return result;
    }
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) {
        result.failure = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
        return result;
    }
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
        Address& address = result.addresses.emplace_back();
        std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
        address.size = a->ai_addrlen;
    }
    freeaddrinfo(found);
    return result;
}

HostPort read_host_port(const std::string& given, int default_port, const std::string& source) {
    std::string host = given.substr(0, given.find(':')), rest = given.substr(host.size());
    if (given.starts_with('[')) {
        const std::size_t end = given.find(']');
        if (end == std::string::npos) refuse(source, "it has no ] after its [");
        host = given.substr(1, end - 1);
        rest = given.substr(end + 1);
        if (!is_ip6(host)) refuse(source, text(host, " in brackets is no IPv6 address"));
    } else if (std::ranges::count(given, ':') > 1) {
        refuse(source, "it has several colons; an IPv6 address stands in brackets");
    }
    if (host.empty()) refuse(source, "it has no host");
    if (const std::string fault = fault_of_name(host); !is_ip6(host) && !fault.empty()) refuse(source, fault);
    if (rest.empty()) return {host, default_port};
    const int port = rest[0] == ':' ? read_port(rest.substr(1)) : 0;
    if (port == 0) refuse(source, text("it ends with ", rest, ", not with a port of 1 to 65535"));
    return {host, port};
}

HostPort read_host_and_port(const std::string& host, const std::string& port, int default_port,
                            const std::string& source) {
    const std::string written = is_ip6(host) ? text("[", host, "]") : host;
    return read_host_port(port.empty() ? written : text(written, ":", port), default_port, source);
}

std::string to_text(const HostPort& at) {
    return is_ip6(at.host) ? text("[", at.host, "]:", at.port) : text(at.host, ":", at.port);
}

bool is_loopback(const std::string& host) {
    in6_addr parsed;
    return host == "127.0.0.1" || host == "localhost" ||
           (inet_pton(AF_INET6, host.c_str(), &parsed) == 1 && IN6_IS_ADDR_LOOPBACK(&parsed));
}

std::vector<std::string> own_addresses() {
    std::vector<std::string> result;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return result;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        const int family = i->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ip6_of(i->ifa_addr))) continue;
        Address address;
        address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::memcpy(&address.storage, i->ifa_addr, address.size);
        result.push_back(address.host());
    }
    freeifaddrs(list);
    return result;
}
