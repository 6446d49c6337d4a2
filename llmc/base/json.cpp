#include "llmc/base/json.h"

Json parse_json(std::string_view text) { return Json::parse(text); }
OrderedJson parse_ordered_json(std::string_view text) { return OrderedJson::parse(text); }

std::string to_text(const Json& json, int indent) { return json.dump(indent); }
std::string to_text(const OrderedJson& json, int indent) { return json.dump(indent); }
