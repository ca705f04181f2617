// What schemas of one document say, as far as the native reader of schemas knows it: its classes.
//
// Knows JSON, keywords and references; builds nothing. What it does not know is *wanted* from the caller.
#ifndef LMPROG_SCHEMA_CLASSES_H
#define LMPROG_SCHEMA_CLASSES_H
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lmprog_json.h"

namespace lmprog {

constexpr int kDeepestCompared = 4;  // members within members that tell two schemas apart
constexpr int32_t kMostCompared = 64;  // branches of `oneOf`
constexpr int64_t kComparisons = 10'000'000;  // of names and values, of one document: some 50 ms
constexpr int kMostReferences = 8;   // references to references that are followed at once
constexpr size_t kLongestInteger = 18, kLongestCount = 9;  // characters
constexpr int32_t kNone = -1, kNotAsked = -2;

enum Keyword : uint8_t {
    kOther, kType, kEnum, kConst, kProperties, kRequired, kAdditional, kItems, kMinItems, kMaxItems, kUnique, kAnyOf,
    kOneOf, kAllOf, kRef, kNumKeywords
};
constexpr std::string_view kNames[kNumKeywords] = {
    "", "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "uniqueItems", "anyOf", "oneOf", "allOf", "$ref"};
constexpr std::string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

enum class Class : uint8_t { kUnknown, kWanted, kNothing, kReference, kAnyOf, kValues, kObject, kArray };

struct Schema {
    Class of = Class::kUnknown;
    int32_t want = kNone;    // who answers: kWanted
    int32_t others = kNone;  // a want: the values of the types that are neither objects nor arrays
    int32_t target = kNotAsked;  // what it stands for, if it is a reference
    int32_t node = kNone;
    uint32_t planned = 0;    // by which plan
    bool is_open = false;
    int32_t hole = kNone;
};

// What a schema says, by keyword: the index of the value, or kNone.
struct Said {
    int32_t at[kNumKeywords];
    bool has_other = false, is_plain = true;  // plain: of scalars, so that its place does not matter
    int count = 0;
    bool only(std::initializer_list<Keyword> keywords) const {
        int known = 0;
        for (const Keyword one : keywords) known += at[one] != kNone;
        return !has_other && known == count;
    }
};

inline bool is_plain_name(std::string_view name) {
    return std::all_of(name.begin(), name.end(),
                       [](char one) { return one >= 0x20 && one <= '~' && one != '"' && one != '\\'; });
}

struct SchemaStyle {
    std::unordered_map<std::string, Keyword> keywords;
    std::string comma, colon;
};

class SchemaClasses {
  public:
    SchemaClasses(std::string_view text, const SchemaStyle& style) : json_(text), style_(style) {
        if (!json_.is_refused()) schemas_.resize(json_.size());
    }

    bool is_read() const {
        if (json_.is_refused() || !is_schema(0)) return false;
        for (int32_t at = 1; at < static_cast<int32_t>(json_.size()); at++)
            if (json_[at].kind == JsonKind::kString && json_[at].key == "$id" && json_[at].parent != 0) return false;
        return true;
    }

    int32_t find(std::string_view path) const {
        return path.empty() || path[0] != '#' ? kNone : followed(path.substr(1));
    }

    std::string wanted;  // by the plan that is made

  protected:
    struct Want {
        std::string said;
        int32_t node = kNone;
        uint32_t planned = 0;
    };

    Schema& known(int32_t at) { return schemas_[static_cast<size_t>(at)]; }
    bool is_object(int32_t at) const { return json_[at].kind == JsonKind::kObject; }
    bool is_bool(int32_t at) const { return json_[at].kind == JsonKind::kTrue || json_[at].kind == JsonKind::kFalse; }
    bool is_schema(int32_t at) const { return is_object(at) || is_bool(at); }
    bool is_list_of_strings(int32_t at) const {
        const auto is_string = [&](int32_t item) { return json_[item].kind == JsonKind::kString; };
        return json_[at].kind == JsonKind::kArray && all(at, is_string);
    }
    template <class Body> void each(int32_t of, Body body) const { json_.each(of, body); }
    template <class Test> bool all(int32_t of, Test test) const {
        for (int32_t at = of + 1; at < json_[of].next; at = json_[at].next)
            if (!test(at)) return false;
        return true;
    }

    // ---- references and paths

    // The schema at a pointer, or kNone.
    int32_t followed(std::string_view pointer) const {
        int32_t at = 0;
        while (!pointer.empty()) {
            if (pointer[0] != '/') return kNone;
            const size_t end = std::min(pointer.find('/', 1), pointer.size());
            at = stepped(at, pointer.substr(1, end - 1));
            if (at == kNone) return kNone;
            pointer.remove_prefix(end);
        }
        return is_schema(at) ? at : kNone;
    }
    int32_t stepped(int32_t at, std::string_view raw) const {
        std::string step;
        for (size_t place = 0; place < raw.size(); place++) {
            const std::string_view escape = raw.substr(place, 2);
            const bool is_escape = escape == "~0" || escape == "~1";
            step += is_escape ? (raw[++place] == '0' ? '~' : '/') : raw[place];
        }
        if (is_object(at)) return json_.member(at, step);
        if (json_[at].kind != JsonKind::kArray || step.empty() || step.size() > kLongestCount) return kNone;
        size_t number = 0;
        for (const char digit : step) {
            if (digit < '0' || digit > '9') return kNone;
            number = 10 * number + static_cast<size_t>(digit - '0');
        }
        const std::vector<int32_t>& items = json_.items(at);
        return number < items.size() ? items[number] : kNone;
    }
    std::string path(int32_t at) const {
        if (!at) return "#";
        const int32_t parent = json_[at].parent;
        if (json_[parent].kind == JsonKind::kArray) {
            const std::vector<int32_t>& items = json_.items(parent);
            const auto number = std::lower_bound(items.begin(), items.end(), at) - items.begin();
            return path(parent) + "/" + std::to_string(number);
        }
        std::string step;
        for (const char letter : json_[at].key) {
            if (letter == '~') step += "~0";
            else if (letter == '/') step += "~1";
            else step += letter;
        }
        return path(parent) + "/" + step;
    }

    // ---- wants

    int32_t want(std::string said) {
        const auto [found, is_new] = want_numbers_.try_emplace(said, static_cast<int32_t>(wants_.size()));
        if (is_new) {
            wants_.emplace_back();
            wants_.back().said = std::move(said);
        }
        return found->second;
    }
    int32_t want_content(const std::string& json) { return want("c" + json); }
    int32_t want_any() { return want_content("{}"); }
    int32_t want_characters() { return want("s"); }
    void ask(int32_t number) {
        Want& one = wants_[static_cast<size_t>(number)];
        if (one.node != kNone || one.planned == plan_) return;
        one.planned = plan_;
        wanted += std::to_string(number) + ' ' + one.said + '\0';
    }
    int32_t answered(int32_t number) const { return wants_[static_cast<size_t>(number)].node; }

    // ---- classes

    Said said(int32_t at) const {
        Said out;
        std::fill(std::begin(out.at), std::end(out.at), kNone);
        each(at, [&](int32_t member) {
            key_.assign(json_[member].key);
            const auto found = style_.keywords.find(key_);
            if (found == style_.keywords.end()) return;
            out.count++;
            if (found->second == kOther) out.has_other = true;
            else out.at[found->second] = member;
            const JsonKind kind = json_[member].kind;
            const bool is_list = kind == JsonKind::kArray && found->second == kType;
            out.is_plain &= kind != JsonKind::kObject && (kind != JsonKind::kArray || is_list) && key_[0] != '$';
        });
        out.is_plain &= out.at[kEnum] == kNone && out.at[kConst] == kNone && out.at[kUnique] == kNone;
        return out;
    }

    Class classed(int32_t at) {
        Schema& one = known(at);
        if (one.of != Class::kUnknown) return one.of;
        one.of = class_of(at, one);
        if (one.of == Class::kWanted && one.want == kNone) one.want = want("p" + path(at));
        return one.of;
    }

    Class class_of(int32_t at, Schema& one) {
        if (json_[at].kind == JsonKind::kFalse) return Class::kNothing;
        if (json_[at].kind == JsonKind::kTrue) {
            one.want = want_any();
            return Class::kWanted;
        }
        const Said says = said(at);
        if (says.is_plain) {
            one.want = want_content(content(at));
            return Class::kWanted;
        }
        one.target = target_in(says);
        if (one.target != kNone) return Class::kReference;
        if (says.only({kAnyOf})) return any_of(says.at[kAnyOf]);
        if (says.only({kOneOf})) return one_of(says.at[kOneOf]);
        if (says.only({kType, kEnum}) || says.only({kType, kConst})) return values(says);
        if (says.only({kType, kProperties, kRequired, kAdditional})) return object(says, one);
        if (says.only({kType, kItems, kMinItems, kMaxItems, kUnique})) return array(says, one);
        return Class::kWanted;
    }

    // A schema of scalars without what says nothing.
    std::string content(int32_t at) const {
        std::string out = "{";
        each(at, [&](int32_t member) {
            key_.assign(json_[member].key);
            if (!style_.keywords.count(key_)) return;
            if (out.size() > 1) out += ',';
            out += json_string(key_) + ":";
            out += json_.raw(json_[member]);
        });
        return out + "}";
    }

    // What a schema stands for that is nothing but a reference, or `allOf` of one schema; else kNone. Looks no further, so
    // that schemas may be told apart without being classed: they may be within each other.
    int32_t target_in(const Said& says) const {
        if (says.at[kRef] != kNone) {
            const JsonValue& reference = json_[says.at[kRef]];
            if (!says.only({kRef})) return kNone;
            const bool is_pointer = reference.kind == JsonKind::kString && reference.text.substr(0, 1) == "#";
            if (!is_pointer || reference.text.find('%') != std::string_view::npos) return kNone;
            return followed(reference.text.substr(1));
        }
        const int32_t list = says.at[kAllOf];
        const bool is_alone = list != kNone && says.only({kAllOf}) && is_list_of_schemas(list);
        return is_alone && json_[list].count == 1 ? list + 1 : kNone;
    }
    int32_t refers_to(int32_t at) {
        Schema& one = known(at);
        if (one.of != Class::kUnknown && one.of != Class::kReference) return kNone;
        if (one.target == kNotAsked) one.target = is_object(at) ? target_in(said(at)) : kNone;
        return one.target;
    }

    // What a schema refers to that is a reference, or the schema; kNone where references lead nowhere.
    int32_t target_of(int32_t at) {
        int count = 0;
        for (int32_t next = refers_to(at); next != kNone; next = refers_to(at)) {
            if (count++ == kMostReferences) return kNone;
            at = next;
        }
        return at;
    }

    bool is_list_of_schemas(int32_t list) const {
        return json_[list].kind == JsonKind::kArray && json_[list].count &&
               all(list, [&](int32_t branch) { return is_schema(branch); });
    }
    Class any_of(int32_t list) { return is_list_of_schemas(list) ? Class::kAnyOf : Class::kWanted; }

    // As `anyOf`, where no value can be of two branches.
    Class one_of(int32_t list) {
        if (!is_list_of_schemas(list) || json_[list].count > kMostCompared) return Class::kWanted;
        std::vector<int32_t> branches;
        each(list, [&](int32_t branch) { branches.push_back(target_of(branch)); });
        for (size_t one = 0; one < branches.size(); one++)
            for (size_t other = one + 1; other < branches.size(); other++)
                if (!exclude_each_other(branches[one], branches[other], 0)) return Class::kWanted;
        return Class::kAnyOf;
    }

    // The twin of `plainly_disjoint` in expand.py, except that it compares fewer values.
    bool exclude_each_other(int32_t left, int32_t right, int depth) {
        if (left == kNone || right == kNone) return false;
        if (!compared(json_[left].count + json_[right].count)) return false;
        if (!is_object(left) || !is_object(right))
            return json_[left].kind == JsonKind::kFalse || json_[right].kind == JsonKind::kFalse;
        const Said one = said(left), other = said(right);
        const uint32_t types = types_of(one.at[kType]), other_types = types_of(other.at[kType]);
        if (types && other_types && !(types & other_types)) return true;
        if (has_values(one) && has_values(other)) {
            return all_values(one, [&](int32_t value) {
                return all_values(other, [&](int32_t another) { return compared(1) && surely_differ(value, another); });
            });
        }
        const uint32_t object = type_bit("object");
        if (depth == kDeepestCompared || (types != object && other_types != object)) return false;
        for (const Said* each_one : {&one, &other})
            if (each_one->at[kProperties] == kNone || each_one->at[kRequired] == kNone) return false;
        if (!is_object(one.at[kProperties]) || !is_object(other.at[kProperties])) return false;
        return !all(one.at[kRequired], [&](int32_t name) {
            const std::string_view key = json_[name].text;
            if (json_[name].kind != JsonKind::kString || !compared(json_[other.at[kRequired]].count)) return true;
            const bool in_both = !all(other.at[kRequired], [&](int32_t at) {
                return json_[at].kind != JsonKind::kString || json_[at].text != key;
            });
            if (!in_both) return true;
            const int32_t mine = json_.member(one.at[kProperties], key), its = json_.member(other.at[kProperties], key);
            if (mine == kNone || its == kNone || !is_schema(mine) || !is_schema(its)) return true;
            return !exclude_each_other(target_of(mine), target_of(its), depth + 1);
        });
    }
    // Whether so many more names or values may be compared: beyond the limit, nothing more is known.
    bool compared(int64_t more) { return (comparisons_left_ -= more) >= 0; }
    // A bit for each of the types; 0 where none or something else is said.
    uint32_t types_of(int32_t type) const {
        if (type == kNone) return 0;
        if (json_[type].kind == JsonKind::kString) return type_bit(json_[type].text);
        uint32_t out = 0;
        const bool is_known = json_[type].kind == JsonKind::kArray && all(type, [&](int32_t item) {
            const uint32_t bit = json_[item].kind == JsonKind::kString ? type_bit(json_[item].text) : 0;
            out |= bit;
            return bit != 0;
        });
        return is_known ? out : 0;
    }
    static uint32_t type_bit(std::string_view name) {
        if (name == "integer") name = "number";
        const auto* found = std::find(std::begin(kTypes), std::end(kTypes), name);
        return found == std::end(kTypes) ? 0 : 1u << (found - std::begin(kTypes));
    }
    bool has_values(const Said& says) const {
        const int32_t list = says.at[kEnum];
        return says.at[kConst] != kNone || (list != kNone && json_[list].kind == JsonKind::kArray);
    }
    template <class Test> bool all_values(const Said& says, Test test) const {
        return says.at[kConst] != kNone ? test(says.at[kConst]) : all(says.at[kEnum], test);
    }
    bool surely_differ(int32_t left, int32_t right) const {
        const JsonValue &one = json_[left], &other = json_[right];
        if (one.kind != other.kind) return true;
        if (one.kind == JsonKind::kString) return one.text != other.text;
        return one.kind == JsonKind::kNumber && is_short(left) && is_short(right) && json_.raw(one) != json_.raw(other);
    }

    Class values(const Said& says) {
        if (says.at[kType] != kNone && json_[says.at[kType]].kind != JsonKind::kString) return Class::kWanted;
        if (says.at[kType] != kNone && !is_type(json_[says.at[kType]].text)) return Class::kWanted;
        if (says.at[kConst] != kNone) return is_short(says.at[kConst]) ? Class::kValues : Class::kWanted;
        const int32_t list = says.at[kEnum];
        if (list == kNone || json_[list].kind != JsonKind::kArray) return Class::kWanted;
        return all(list, [&](int32_t value) { return is_short(value); }) ? Class::kValues : Class::kWanted;
    }
    // Whether a value has one plain spelling.
    bool is_short(int32_t at) const {
        const JsonValue& value = json_[at];
        if (value.kind != JsonKind::kNumber) return value.kind != JsonKind::kArray && value.kind != JsonKind::kObject;
        const std::string_view raw = json_.raw(value);
        return raw.size() <= kLongestInteger && raw.find_first_of(".eE") == std::string_view::npos && raw != "-0";
    }
    static bool is_type(std::string_view name) {
        return std::find(std::begin(kTypes), std::end(kTypes), name) != std::end(kTypes);
    }

    // Whether `type` (kNone: all) takes what `wanted` names. Writes the want of the other types, if there are any.
    bool takes_type(int32_t type, std::string_view wanted, Schema& one) {
        std::vector<std::string_view> names;
        if (type == kNone) {
            names = {"null", "boolean", "number", "string", "array", "object"};
        } else if (json_[type].kind == JsonKind::kString) {
            names = {json_[type].text};
        } else if (is_list_of_strings(type)) {
            each(type, [&](int32_t item) { names.push_back(json_[item].text); });
        }
        if (!std::all_of(names.begin(), names.end(), is_type)) return false;
        bool is_taken = false;
        std::string others;
        for (const std::string_view name : names) {
            if (name == wanted) is_taken = true;
            else others += std::string(others.empty() ? "" : ",") + '"' + std::string(name) + '"';
        }
        if (is_taken && !others.empty()) one.others = want_content("{\"type\":[" + others + "]}");
        return is_taken;
    }

    Class object(const Said& says, Schema& one) {
        const int32_t named = says.at[kProperties], required = says.at[kRequired], rest = says.at[kAdditional];
        const bool are_schemas = named == kNone || (is_object(named) && all(named, [&](int32_t at) { return is_schema(at); }));
        if (!are_schemas) return Class::kWanted;
        if (required != kNone && !is_list_of_strings(required)) return Class::kWanted;
        if (rest != kNone && !is_schema(rest)) return Class::kWanted;
        if (rest == kNone || json_[rest].kind != JsonKind::kFalse) {  // other names are all but these
            bool is_plain = named == kNone || all(named, [&](int32_t at) { return is_plain_name(json_[at].key); });
            is_plain &= required == kNone || all(required, [&](int32_t at) { return is_plain_name(json_[at].text); });
            if (!is_plain) return Class::kWanted;
        }
        return takes_type(says.at[kType], "object", one) ? Class::kObject : Class::kWanted;
    }

    Class array(const Said& says, Schema& one) {
        if (says.at[kItems] != kNone && !is_schema(says.at[kItems])) return Class::kWanted;
        if (says.at[kUnique] != kNone && json_[says.at[kUnique]].kind != JsonKind::kFalse) return Class::kWanted;
        for (const Keyword bound : {kMinItems, kMaxItems}) {
            if (says.at[bound] == kNone) continue;
            const std::string_view raw = json_.raw(json_[says.at[bound]]);
            const bool is_count = raw.find_first_not_of("0123456789") == std::string_view::npos;
            if (!is_count || raw.size() > kLongestCount) return Class::kWanted;
        }
        return takes_type(says.at[kType], "array", one) ? Class::kArray : Class::kWanted;
    }

    static int32_t branches_of(const Said& says) { return says.at[says.at[kAnyOf] != kNone ? kAnyOf : kOneOf]; }

    JsonText json_;
    const SchemaStyle& style_;
    std::vector<Schema> schemas_;  // by the place of their value
    std::deque<Want> wants_;
    std::unordered_map<std::string, int32_t> want_numbers_;
    uint32_t plan_ = 0;
    int64_t comparisons_left_ = kComparisons;
    mutable std::string key_;
};

}  // namespace lmprog
#endif
