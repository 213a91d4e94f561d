#include "penstock/model/edges.h"

#include <algorithm>
#include <map>
#include <set>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock::model {

namespace {

// Something that travels: made once, by a layer or by the batch.
struct Element {
  std::string name;
  int32_t born = -1;
  int32_t output = -1;
  std::vector<int32_t> readers = {};
};

class Builder {
 public:
  Builder(const std::vector<Names>& names, const std::vector<std::string>& layer_names)
      : names_(names), layer_names_(layer_names) {}

  Edges build(const std::vector<std::string>& targets) {
    const int32_t loss = static_cast<int32_t>(names_.size()) - 1;
    for (int32_t layer = 0; layer <= loss; ++layer) {
      read(layer);
      if (layer < loss) {
        write(layer);
      }
    }
    require_readers();
    place_all(loss);
    edges_.target_fields = targets;
    return std::move(edges_);
  }

 private:
  std::vector<std::string> reads_of(int32_t layer) const {
    const std::vector<std::string>& own = names_[static_cast<size_t>(layer)].reads;
    if (!own.empty()) {
      return own;
    }
    return layer == 0 ? std::vector<std::string>{"inputs"} : writes_of(layer - 1);
  }
  std::vector<std::string> writes_of(int32_t layer) const {
    const std::vector<std::string>& own = names_[static_cast<size_t>(layer)].writes;
    return own.empty() ? std::vector<std::string>{"x"} : own;
  }
  const std::string& name_of(int32_t layer) const {
    return layer_names_[static_cast<size_t>(layer)];
  }

  // What nobody has made so far is a field of the batch.
  void read(int32_t layer) {
    std::vector<size_t>& read = reads_.emplace_back();
    std::set<std::string> twice;
    for (const std::string& name : reads_of(layer)) {
      if (!twice.insert(name).second) {
        throw ConfigError(cat("layer ", name_of(layer), " reads \"", name, "\" twice"));
      }
      auto [known, is_new] = newest_.emplace(name, elements_.size());
      if (is_new) {
        require_not_later(layer, name);
        elements_.push_back({name});
      }
      elements_[known->second].readers.push_back(layer);
      read.push_back(known->second);
    }
  }

  bool makes(int32_t layer, const std::string& name) const {
    const std::vector<std::string> writes = writes_of(layer);
    return std::find(writes.begin(), writes.end(), name) != writes.end();
  }

  // A name that a later layer makes is more likely a mistake in the order than a field. What a layer reads
  // and makes anew, "x" say, can only be a field.
  void require_not_later(int32_t layer, const std::string& name) const {
    const int32_t loss = static_cast<int32_t>(names_.size()) - 1;
    if (layer == loss || makes(layer, name) || name == "inputs") {
      return;
    }
    for (int32_t later = layer + 1; later < loss; ++later) {
      if (makes(later, name)) {
        throw ConfigError(cat("layer ",
                              name_of(layer),
                              " reads \"",
                              name,
                              "\", which is made only by layer ",
                              name_of(later),
                              ", after it"));
      }
    }
  }

  void write(int32_t layer) {
    std::vector<size_t>& written = writes_.emplace_back();
    std::set<std::string> twice;
    for (const std::string& name : writes_of(layer)) {
      if (!twice.insert(name).second) {
        throw ConfigError(cat("layer ", name_of(layer), " makes \"", name, "\" twice"));
      }
      written.push_back(elements_.size());
      newest_[name] = elements_.size();
      elements_.push_back({name, layer, static_cast<int32_t>(written.size()) - 1});
    }
  }

  void require_readers() const {
    for (const Element& element : elements_) {
      if (element.readers.empty()) {
        throw ConfigError(cat(
            "layer ",
            name_of(element.born),
            " makes \"",
            element.name,
            "\", which neither a later layer nor the loss reads: let one read it, or return fewer",
            names_[static_cast<size_t>(element.born)].writes.empty()
                ? "; without .writes a layer makes \"x\""
                : ""));
      }
    }
  }

  // Only the next layer reads it: part of the tuple between the two.
  static bool is_in_tuple(const Element& element) {
    return element.readers.size() == 1 && element.readers.front() == element.born + 1;
  }

  void place_all(int32_t loss) {
    edges_.widths.assign(static_cast<size_t>(loss) + 1, 0);
    places_.resize(elements_.size());
    for (size_t i = 0; i < elements_.size(); ++i) {
      const Element& element = elements_[i];
      if (is_in_tuple(element)) {
        int32_t& width = edges_.widths[static_cast<size_t>(element.born) + 1];
        places_[i].position = width++;
        if (element.born < 0) {
          edges_.first_fields.push_back(element.name);
        }
      } else {
        places_[i].carried = static_cast<int32_t>(edges_.carried.size());
        edges_.carried.push_back({element.name, element.born, element.output, element.readers});
      }
    }
    const auto places = [&](const std::vector<std::vector<size_t>>& all) {
      std::vector<std::vector<Place>> result;
      for (const std::vector<size_t>& one : all) {
        std::vector<Place>& layer = result.emplace_back();
        for (const size_t element : one) {
          layer.push_back(places_[element]);
        }
      }
      return result;
    };
    edges_.inputs = places(reads_);
    edges_.outputs = places(writes_);
  }

  const std::vector<Names>& names_;
  const std::vector<std::string>& layer_names_;
  std::vector<Element> elements_;
  std::map<std::string, size_t> newest_;  // by name: index into elements_
  std::vector<std::vector<size_t>> reads_, writes_;
  std::vector<Place> places_;
  Edges edges_;
};

}  // namespace

Edges make_edges(const std::vector<Names>& names,
                 const std::vector<std::string>& targets,
                 const std::vector<std::string>& layer_names) {
  return Builder(names, layer_names).build(targets);
}

std::vector<std::string> Edges::fields_of(const std::vector<int64_t>& layers, bool has_loss) const {
  const int32_t loss = static_cast<int32_t>(outputs.size());
  const auto has = [&](int32_t layer) {
    return layer == loss ? has_loss
                         : std::find(layers.begin(), layers.end(), layer) != layers.end();
  };
  std::vector<std::string> fields;
  const auto add = [&](const std::string& name) {
    if (std::find(fields.begin(), fields.end(), name) == fields.end()) {
      fields.push_back(name);
    }
  };
  if (has(0)) {
    std::for_each(first_fields.begin(), first_fields.end(), add);
  }
  for (const CarriedName& element : carried) {
    if (element.born < 0 && std::any_of(element.readers.begin(), element.readers.end(), has)) {
      add(element.name);
    }
  }
  if (has_loss) {
    std::for_each(target_fields.begin(), target_fields.end(), add);
  }
  return fields;
}

bool Edges::has_gradient(int64_t layer, size_t input) const {
  const Place& place = inputs[static_cast<size_t>(layer)][input];
  return place.carried < 0 ? layer > 0 : carried[static_cast<size_t>(place.carried)].born >= 0;
}

}  // namespace penstock::model
