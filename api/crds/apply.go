package crds

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
)

// FieldError is one thing that is wrong with one field.
type FieldError struct {
	// Path of the field, for example spec.networkConfig.dnsServers[0].
	Path string
	// Message says what is wrong and what to do, without the path.
	Message string
}

// Error is "path: message".
func (e FieldError) Error() string { return e.Path + ": " + e.Message }

// Apply checks one object, as decoded from JSON or YAML (map[string]any, []any, string, bool, int64, float64,
// nil), and fills in its defaults. A null counts as a field left out; the status of a kind of ours is removed. The errors are in the
// order of the fields' names; with none, the object converts to its Go type without loss.
func (s *Schema) Apply(object map[string]any) []FieldError {
	if s.status != nil {
		delete(object, "status")
	}
	var w walk
	w.value(object, &s.root, "")
	return w.errs
}

// StatusField checks one field of the status of an object of this API, which Apply removes, with what is below it. A status that is
// no mapping, or has no such field, has no errors, and of a kind of somebody else none is known.
func (s *Schema) StatusField(object map[string]any, name string) []FieldError {
	status, _ := object["status"].(map[string]any)
	if s.status == nil || s.status.properties[name] == nil || status[name] == nil {
		return nil
	}
	var w walk
	w.value(status[name], s.status.properties[name], "status."+name)
	return w.errs
}

// walk collects the errors of one object.
type walk struct {
	errs []FieldError
}

func (w *walk) add(path, format string, args ...any) {
	w.errs = append(w.errs, FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// value checks one value and whatever is below it.
func (w *walk) value(value any, n *node, path string) {
	switch n.kind {
	case "object":
		if m, ok := value.(map[string]any); ok {
			w.object(m, n, path)
			return
		}
		w.add(path, "must be a mapping of fields, not %s", describe(value))
	case "array":
		if list, ok := value.([]any); ok {
			w.list(list, n, path)
			return
		}
		w.add(path, "must be a list (- a, - b), not %s", describe(value))
	case "string":
		s, ok := value.(string)
		switch {
		case !ok:
			w.add(path, "must be a text, not %s%s", describe(value), quoteHint(value))
		case int64(utf8.RuneCountInString(s)) < n.minLength:
			w.add(path, "must not be empty: give a value")
		case n.tooMany(utf8.RuneCountInString(s)):
			w.add(path, "has %d characters: use at most %d", utf8.RuneCountInString(s), *n.most)
		case len(n.enum) > 0 && !slices.Contains(n.enum, s):
			w.add(path, "%q is not a known value: use %s%s", s, either(n.enum), suggest(s, n.enum))
		}
	case "integer":
		w.integer(value, n, path)
	case "quantity":
		w.quantity(value, n, path)
	case "number":
		switch value.(type) {
		case int64, float64:
		default:
			w.add(path, "must be a number, not %s", describe(value))
		}
	case "":
		if n.self != nil {
			if err := readable(value, n.self); err != nil {
				w.add(path, "cannot be read as %s: it is %s", n.self.Name(), describe(value))
			}
		}
	case "boolean":
		if _, ok := value.(bool); !ok {
			w.add(path, "must be true or false, not %s", describe(value))
		}
	}
}

func (w *walk) object(m map[string]any, n *node, path string) {
	meant := map[string]bool{} // by a misspelt field: one mistake, one error
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at := join(path, name)
		child := n.properties[name]
		if child == nil {
			child = n.values
		}
		switch {
		case child == nil && n.open:
		case child == nil:
			meant[nearest(name, n.names)] = true
			w.add(at, "is not a field of %s%s", owner(path), n.hint(name))
			delete(m, name)
		case m[name] == nil:
			delete(m, name)
		}
	}
	for _, name := range n.names {
		if child := n.properties[name]; child.fallback != nil {
			if _, there := m[name]; !there {
				m[name] = runtime.DeepCopyJSONValue(child.fallback)
			}
		}
	}
	for _, name := range n.required {
		if _, there := m[name]; !there && !meant[name] {
			w.add(join(path, name), "is missing: add it")
		}
	}
	if n.tooMany(len(m)) {
		w.add(path, "has %d entries: use at most %d", len(m), *n.most)
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if child := n.properties[name]; child != nil {
			w.value(m[name], child, join(path, name))
		} else if n.values != nil {
			w.value(m[name], n.values, join(path, name))
		}
	}
}

// tooMany tells whether a text, a list or a map is longer than it may be.
func (n *node) tooMany(length int) bool { return n.most != nil && int64(length) > *n.most }

// hint is what to do about an unknown field.
func (n *node) hint(name string) string {
	if s := suggest(name, n.names); s != "" {
		return s
	}
	if len(n.names) == 0 {
		return ": remove it"
	}
	return ": remove it, or use one of " + strings.Join(n.names, ", ")
}

func (w *walk) list(list []any, n *node, path string) {
	if n.tooMany(len(list)) {
		w.add(path, "has %d entries: use at most %d", len(list), *n.most)
	}
	if n.items == nil {
		return
	}
	seen := map[any]int{}
	for i, item := range list {
		at := path + "[" + strconv.Itoa(i) + "]"
		if item == nil {
			w.add(at, "is empty: give a value, or remove the entry")
			continue
		}
		if s, ok := item.(string); ok && n.set {
			if first, dup := seen[s]; dup {
				w.add(at, "%q is already entry %d: remove one", s, first)
			} else {
				seen[s] = i
			}
		}
		w.value(item, n.items, at)
	}
}

func (w *walk) integer(value any, n *node, path string) {
	var number int64
	switch v := value.(type) {
	case int64:
		number = v
	case float64:
		if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
			w.add(path, "must be a whole number, not %s", describe(value))
			return
		}
		number = int64(v)
	default:
		w.add(path, "must be a whole number, not %s", describe(value))
		return
	}
	low, high := float64(math.MinInt64), float64(math.MaxInt64)
	if n.bits == 32 {
		low, high = math.MinInt32, math.MaxInt32
	}
	if n.minimum != nil {
		low = max(low, *n.minimum)
	}
	if n.maximum != nil {
		high = min(high, *n.maximum)
	}
	if f := float64(number); f < low || f > high {
		w.add(path, "is %d: use %.0f to %.0f", number, low, high)
	}
}

// quantity checks an amount: a whole number, or a text as 500m or 1Gi.
func (w *walk) quantity(value any, n *node, path string) {
	switch v := value.(type) {
	case int64:
	case string:
		if !n.pattern.MatchString(v) {
			w.add(path, "%q is not an amount: write a number and, where it needs one, a unit, for example 500m or 128Mi", v)
		}
	default:
		w.add(path, "must be an amount (2, 500m, 128Mi), not %s%s", describe(value), quoteHint(value))
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// owner names what a field is not a field of.
func owner(path string) string {
	if path == "" {
		return "this kind"
	}
	return path
}

// describe names a value by its type, and shows it when it is short.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "nothing"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case bool:
		return fmt.Sprintf("the switch %t", v)
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		return "the number " + strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		if utf8.RuneCountInString(v) > 40 {
			v = string([]rune(v)[:40]) + "…"
		}
		return fmt.Sprintf("the text %q", v)
	}
	return fmt.Sprintf("a %T", value)
}

// quoteHint helps with the commonest slip: a text that YAML reads as something else.
func quoteHint(value any) string {
	switch value.(type) {
	case bool, int64, float64:
		return ": put it in quotes"
	}
	return ""
}

func either(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

// suggest names the known word closest to the given one, if it is close enough to be what was meant.
func suggest(word string, known []string) string {
	if best := nearest(word, known); best != "" {
		return fmt.Sprintf(": did you mean %s?", best)
	}
	return ""
}

// nearest is the known word that the given one is most likely meant for; empty: none is close.
func nearest(word string, known []string) string {
	best, distance := "", 3
	if len(word) < 4 {
		distance = 2
	}
	for _, k := range known {
		if strings.EqualFold(k, word) {
			best = k
			break
		}
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance is Levenshtein's, over bytes; far longer words than any field are not worth the work.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return math.MaxInt
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
