package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v3"
)

const (
	// maxExpanded bounds what aliases may add to one file: a few lines of aliases of aliases can stand for
	// billions of values.
	maxExpanded = 1 << 20
	// maxDepth bounds nesting; the deepest real manifest has about 20 levels.
	maxDepth = 200
)

// document is one manifest of a file.
type document struct {
	node  *yaml.Node
	value map[string]any
}

// syntaxError is what keeps a whole file from being read.
type syntaxError struct {
	line    int
	message string
}

func (e *syntaxError) Error() string { return e.message }

func syntax(line int, format string, args ...any) *syntaxError {
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

// parse splits a file into its documents. Documents with nothing in them are left out, lists are unpacked.
func parse(name string, raw []byte) ([]document, *syntaxError) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if err := checkEncoding(raw); err != nil {
		return nil, err
	}
	read := parseYAML
	if strings.HasSuffix(name, ".json") {
		read = parseJSON
	}
	roots, err := read(raw)
	if err != nil {
		return nil, err
	}
	c := converter{budget: maxExpanded}
	var docs []document
	for _, root := range roots {
		value, err := c.value(root, 0)
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil, syntax(root.Line, "is not an object: each document must be a mapping with apiVersion, kind, metadata and spec")
		}
		docs = unpack(docs, document{root, object})
	}
	return docs, nil
}

// unpack adds a document, or the items of a list.
func unpack(docs []document, d document) []document {
	kind, _ := d.value["kind"].(string)
	items, isList := d.value["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		return append(docs, d)
	}
	nodes := child(d.node, "items")
	for i, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			object = map[string]any{} // reported as an object without kind and name, on its line
		}
		// The items of a list of one kind need not repeat it.
		if object["kind"] == nil && kind != "List" {
			object["kind"] = strings.TrimSuffix(kind, "List")
			object["apiVersion"] = d.value["apiVersion"]
		}
		docs = append(docs, document{resolve(nodes.Content[i]), object})
	}
	return docs
}

func checkEncoding(raw []byte) *syntaxError {
	if bytes.HasPrefix(raw, []byte{0xff, 0xfe}) || bytes.HasPrefix(raw, []byte{0xfe, 0xff}) {
		return syntax(1, "is UTF-16: save it as UTF-8")
	}
	isControl := func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f }
	if at := bytes.IndexFunc(raw, isControl); at >= 0 {
		return syntax(lineAt(raw, at), "holds the control character 0x%02x: remove it", raw[at])
	}
	if utf8.Valid(raw) {
		return nil
	}
	for at := 0; at < len(raw); {
		r, size := utf8.DecodeRune(raw[at:])
		if r == utf8.RuneError && size == 1 {
			return syntax(lineAt(raw, at), "byte 0x%02x is not UTF-8: save the file as UTF-8", raw[at])
		}
		at += size
	}
	return nil
}

func lineAt(raw []byte, offset int) int {
	return 1 + bytes.Count(raw[:min(offset, len(raw))], []byte("\n"))
}

// yamlLine and yamlAnchor find the line, and the name of a missing anchor, in the parser's errors.
var (
	yamlLine   = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

func parseYAML(raw []byte) ([]*yaml.Node, *syntaxError) {
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	var roots []*yaml.Node
	for {
		var doc yaml.Node
		switch err := decoder.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return roots, nil
		case err != nil:
			return nil, yamlError(raw, err)
		}
		if len(doc.Content) == 1 {
			roots = append(roots, doc.Content[0])
		}
	}
}

func yamlError(raw []byte, err error) *syntaxError {
	line, message := 0, err.Error()
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1]) // empty: the whole file
		message = m[2]
	}
	if m := yamlAnchor.FindStringSubmatch(message); m != nil {
		return syntax(lineAt(raw, bytes.Index(raw, []byte("*"+m[1]))), "the alias *%s has no anchor &%s above it: write the value out", m[1], m[1])
	}
	// The parser may stop a line before or after the one that holds the tab.
	lines := bytes.Split(raw, []byte("\n"))
	for n := max(line-1, 1); n <= min(line+1, len(lines)); n++ {
		text := lines[n-1]
		if indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]; bytes.Contains(indent, []byte("\t")) {
			return syntax(n, "is indented by a tab, which YAML does not allow: use spaces")
		}
	}
	return syntax(line, "does not parse as YAML: %s", message)
}

// parseJSON reads JSON into the same tree as YAML, since a YAML parser misreads some of it (escaped surrogates,
// tabs). Several documents may follow one another.
func parseJSON(raw []byte) ([]*yaml.Node, *syntaxError) {
	p := jsonParser{raw: raw, decoder: json.NewDecoder(bytes.NewReader(raw)), line: 1}
	p.decoder.UseNumber()
	var roots []*yaml.Node
	for {
		token, err := p.decoder.Token()
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		node, fail := p.node(token, err, 0)
		if fail != nil {
			return nil, fail
		}
		roots = append(roots, node)
	}
}

type jsonParser struct {
	raw     []byte
	decoder *json.Decoder
	// line is that of offset, so that lines are counted once.
	line, offset int
}

// here is the line of the last token.
func (p *jsonParser) here() int {
	if at := int(p.decoder.InputOffset()); at > p.offset {
		p.line += bytes.Count(p.raw[p.offset:at], []byte("\n"))
		p.offset = at
	}
	return p.line
}

func (p *jsonParser) fail(err error) *syntaxError {
	line := p.here()
	var bad *json.SyntaxError
	if errors.As(err, &bad) {
		line = lineAt(p.raw, int(bad.Offset))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return syntax(lineAt(p.raw, len(p.raw)), "does not parse as JSON: it ends too early")
	}
	return syntax(line, "does not parse as JSON: %s", err)
}

func (p *jsonParser) node(token json.Token, err error, depth int) (*yaml.Node, *syntaxError) {
	if err != nil {
		return nil, p.fail(err)
	}
	if depth > maxDepth {
		return nil, syntax(p.here(), "is nested more than %d levels deep", maxDepth)
	}
	n := &yaml.Node{Line: p.here()}
	switch t := token.(type) {
	case json.Delim:
		n.Kind = yaml.MappingNode
		if t == '[' {
			n.Kind = yaml.SequenceNode
		}
		for p.decoder.More() {
			token, err := p.decoder.Token()
			sub, fail := p.node(token, err, depth+1)
			if fail != nil {
				return nil, fail
			}
			n.Content = append(n.Content, sub)
		}
		if _, err := p.decoder.Token(); err != nil {
			return nil, p.fail(err)
		}
		return n, nil
	case string:
		n.Kind, n.Tag, n.Value, n.Style = yaml.ScalarNode, "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!float", t.String()
		if !strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!int"
		}
	case bool:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!bool", strconv.FormatBool(t)
	default:
		n.Kind, n.Tag = yaml.ScalarNode, "!!null"
	}
	return n, nil
}

// converter turns nodes into the values that JSON would have given.
type converter struct {
	budget  int // of values that come from aliases
	aliases []*yaml.Node
}

func (c *converter) value(n *yaml.Node, depth int) (any, *syntaxError) {
	if depth > maxDepth {
		return nil, syntax(n.Line, "is nested more than %d levels deep", maxDepth)
	}
	if len(c.aliases) > 0 {
		if c.budget--; c.budget < 0 {
			return nil, syntax(c.aliases[0].Line, "its aliases stand for more than %d values: write them out", maxExpanded)
		}
	}
	switch n.Kind {
	case yaml.AliasNode:
		if slices.Contains(c.aliases, n) {
			return nil, syntax(n.Line, "the alias %s contains itself", n.Value)
		}
		c.aliases = append(c.aliases, n)
		value, err := c.value(n.Alias, depth+1)
		c.aliases = c.aliases[:len(c.aliases)-1]
		return value, err
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			value, err := c.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	}
	return scalar(n)
}

func (c *converter) mapping(n *yaml.Node, depth int) (any, *syntaxError) {
	m := make(map[string]any, len(n.Content)/2)
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := resolve(n.Content[i])
		if k.Kind != yaml.ScalarNode {
			return nil, syntax(k.Line, "a field name must be a plain word, not a list or a mapping")
		}
		if isMerge(k) {
			continue
		}
		if first, dup := lines[k.Value]; dup {
			return nil, syntax(k.Line, "%s is already set on line %d: remove one of the two", k.Value, first)
		}
		lines[k.Value] = k.Line
		value, err := c.value(n.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		m[k.Value] = value
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !isMerge(resolve(n.Content[i])) {
			continue
		}
		if err := c.merge(m, n.Content[i+1], depth); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// merge adds the fields of a merge key (<<) that are not set otherwise; of several mappings the first wins.
func (c *converter) merge(m map[string]any, n *yaml.Node, depth int) *syntaxError {
	value, err := c.value(n, depth+1)
	if err != nil {
		return err
	}
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	for _, item := range list {
		from, ok := item.(map[string]any)
		if !ok {
			return syntax(n.Line, "<< must name a mapping, or a list of mappings")
		}
		for k, v := range from {
			if _, set := m[k]; !set {
				m[k] = v
			}
		}
	}
	return nil
}

func isMerge(key *yaml.Node) bool { return key.ShortTag() == "!!merge" }

// scalar reads one value as kubectl does: plain yes, no, on and off are switches, as they were in YAML 1.1.
func scalar(n *yaml.Node) (any, *syntaxError) {
	switch n.ShortTag() {
	case "!!str":
		if n.Style == 0 {
			switch n.Value {
			case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
				return true, nil
			case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
				return false, nil
			}
		}
		return n.Value, nil
	case "!!timestamp", "!!binary", "!!merge":
		return n.Value, nil
	case "!!null":
		return nil, nil
	case "!!int":
		if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil && !strings.HasPrefix(strings.TrimLeft(n.Value, "+-"), "0") {
			return i, nil
		}
	}
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, syntax(n.Line, "%q cannot be read: %s", n.Value, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	switch v := value.(type) {
	case bool, string:
		return v, nil
	case int:
		return int64(v), nil
	case int64:
		return v, nil
	case uint64:
		return float64(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, syntax(n.Line, "%s is not a number that an object can hold: put it in quotes if it is a text", n.Value)
		}
		return v, nil
	}
	return nil, syntax(n.Line, "%q has the tag %s, which is not known here: remove the tag", n.Value, n.Tag)
}

// resolve follows aliases.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// child is the value of a field, merged ones included; nil when there is none.
func child(n *yaml.Node, name string) *yaml.Node {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := resolve(n.Content[i]); k.Value == name && !isMerge(k) {
			return resolve(n.Content[i+1])
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !isMerge(resolve(n.Content[i])) {
			continue
		}
		from := resolve(n.Content[i+1])
		if from.Kind != yaml.SequenceNode {
			from = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{from}}
		}
		for _, m := range from.Content {
			if c := child(m, name); c != nil {
				return c
			}
		}
	}
	return nil
}

// lineOf is the line of a field, or of the closest thing above it that is there.
func lineOf(n *yaml.Node, path string) int {
	n = resolve(n)
	line := n.Line
	for path != "" {
		if index, rest, ok := cutIndex(path); ok && n.Kind == yaml.SequenceNode && index < len(n.Content) {
			line = n.Content[index].Line
			n, path = resolve(n.Content[index]), rest
			continue
		}
		key, value, rest := longestKey(n, strings.TrimPrefix(path, "."))
		if key == nil {
			return line
		}
		line, n, path = key.Line, resolve(value), rest
	}
	return line
}

// cutIndex takes "[3]" off the front.
func cutIndex(path string) (index int, rest string, ok bool) {
	if !strings.HasPrefix(path, "[") {
		return 0, path, false
	}
	digits, rest, found := strings.Cut(path[1:], "]")
	index, err := strconv.Atoi(digits)
	return index, rest, found && err == nil && index >= 0
}

// longestKey finds the field that a path starts with; names may hold dots.
func longestKey(n *yaml.Node, path string) (key, value *yaml.Node, rest string) {
	if n.Kind != yaml.MappingNode {
		return nil, nil, path
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := resolve(n.Content[i])
		if after, ok := strings.CutPrefix(path, k.Value); ok && (after == "" || after[0] == '.' || after[0] == '[') && (key == nil || len(k.Value) > len(key.Value)) {
			key, value, rest = k, n.Content[i+1], after
		}
	}
	if key != nil {
		return key, value, rest
	}
	name, after := path, ""
	if at := strings.IndexAny(path, ".["); at >= 0 {
		name, after = path[:at], path[at:]
	}
	if merged := child(n, name); merged != nil {
		return merged, merged, after
	}
	return nil, nil, path
}
