package appsingress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// A hosted cluster is its tenant's: its API server, or whatever he puts in the place of one of its APIs, may answer
// anything. These bounds are what one of them can cost the hub, in bytes. Cost is an estimate of what decoded JSON takes in memory,
// which is up to 60 times as much as its text.
const (
	// lookBytes bounds all answers of one look together.
	lookBytes = 8 << 20
	// answerBytes bounds one answer, which is in memory as a whole before it is decoded.
	answerBytes = 2 << 20
	// errorBytes bounds what is read of an answer that is an error.
	errorBytes = 64 << 10
	// objectCost bounds one object, decoded.
	objectCost = 1 << 20
	// keptCost bounds the objects of all lists that one look keeps.
	keptCost = 2 << 20
	// eventBytes bounds one event of a watch, and watchBytes all of one watch, which ends then.
	eventBytes, watchBytes = 512 << 10, 4 << 20
	// headerBytes bounds the headers of an answer.
	headerBytes = 64 << 10
	// streamBytes and connectionBytes are what a server may send ahead of what is read (HTTP/2).
	streamBytes, connectionBytes = 256 << 10, 1 << 20

	// pageSize of lists, in objects, and maxPages of them.
	pageSize, maxPages = 20, 200
	// tokenLength bounds what a list says of itself: its version, and where it goes on.
	tokenLength = 4 << 10
	// decoders is how many looks decode at once.
	decoders = 2
)

// budget is what is left to one look.
type budget struct {
	bytes int64
	kept  int
	// exceeded: an answer was larger than what was left for it.
	exceeded bool
}

func newBudget() *budget { return &budget{bytes: lookBytes, kept: keptCost} }

// spent is how many bytes were read.
func (b *budget) spent() int64 { return lookBytes - b.bytes }

// keep takes room for an object that is kept.
func (b *budget) keep(cost int) error {
	if b.kept -= cost; b.kept < 0 {
		return fmt.Errorf("its objects take more than %d MiB of memory", keptCost>>20)
	}
	return nil
}

// boundedAnswers ends answers that are too large. What is compressed was never asked for, and is not unpacked. Watches have bounds of
// their own.
type boundedAnswers struct {
	next   http.RoundTripper
	hosted *hosted
}

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	switch {
	case err != nil:
	case response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusMultipleChoices:
		response.Body = &errorBody{io.LimitReader(response.Body, errorBytes), response.Body}
	case request.URL.Query().Get("watch") == "":
		response.Body = &boundedBody{response.Body, answerBytes, b.hosted.budget}
	}
	return response, err
}

// errorBody is the beginning of a body.
type errorBody struct {
	io.Reader
	io.Closer
}

// boundedBody ends where the budget does, and notes it there: an error would be logged by client-go at each look.
type boundedBody struct {
	io.ReadCloser
	left   int64
	budget *budget
}

func (b *boundedBody) Read(p []byte) (int, error) {
	// One more than there may be shows that there is more.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), min(b.left, b.budget.bytes)+1)])
	b.left -= int64(n)
	b.budget.bytes -= int64(n)
	if b.left < 0 || b.budget.bytes < 0 {
		b.budget.exceeded = true
		return n, io.EOF
	}
	return n, err
}

// costOf estimates what JSON takes in memory as maps, lists and strings, without decoding it: a map is 300 bytes, with room for 8
// keys, and an entry of a map or list two words, twice that while it grows, and two more for what it leads to. What looks like
// JSON in a string counts, too.
func costOf(raw []byte) int {
	cost := 1<<10 + len(raw)
	for _, c := range raw {
		switch c {
		case '{':
			cost += 320
		case '[', ',', ':':
			cost += 64
		}
	}
	return cost
}

// readObject decodes one object, if it is one and not too large; cost is what it takes.
func readObject(raw []byte) (object *unstructured.Unstructured, cost int, err error) {
	if cost = costOf(raw); cost > objectCost {
		return nil, 0, fmt.Errorf("one object (%s) takes more than %d KiB of memory", nameIn(raw), objectCost>>10)
	}
	object = &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(raw, &object.Object); err != nil {
		return nil, 0, errNoJSON
	}
	// They come into messages.
	for _, name := range []string{object.GetName(), object.GetNamespace(), string(object.GetUID())} {
		if len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, 0, errors.New("an object has a name that no object can have")
		}
	}
	return object, cost, nil
}

// nameIn is the name of an object that is too large to be decoded as a whole.
func nameIn(raw []byte) string {
	var named struct {
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(raw, &named); err != nil || named.Metadata.Name == "" {
		return "without a name"
	}
	return cut(strings.TrimPrefix(named.Metadata.Namespace+"/"+named.Metadata.Name, "/"))
}

// errNoJSON does not cite what it was.
var errNoJSON = errors.New("the answer is not the JSON of a Kubernetes API")

// listPage is what a page says of itself.
type listPage struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// readPage decodes a page of a list, one object at a time, until the callback has enough or fails.
func readPage(raw []byte, each func(object *unstructured.Unstructured, cost int) (more bool, err error)) (page listPage, more bool, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return page, false, errNoJSON
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return page, false, errNoJSON
		}
		switch key {
		case "metadata":
			if err := decoder.Decode(&page); err != nil || len(page.ResourceVersion) > tokenLength || len(page.Continue) > tokenLength {
				return page, false, errNoJSON
			}
		case "items":
			if more, err := readItems(decoder, each); !more || err != nil {
				return page, false, err
			}
		default:
			var other struct{}
			if err := decoder.Decode(&other); err != nil && !isOfAnotherType(err) {
				return page, false, errNoJSON
			}
		}
	}
	if _, err := decoder.Token(); err != nil {
		return page, false, errNoJSON
	}
	return page, true, nil
}

// isOfAnotherType: it was JSON, and was passed over.
func isOfAnotherType(err error) bool {
	var other *json.UnmarshalTypeError
	return errors.As(err, &other)
}

func readItems(decoder *json.Decoder, each func(*unstructured.Unstructured, int) (bool, error)) (more bool, err error) {
	switch start, err := decoder.Token(); {
	case err == nil && start == nil: // null
		return true, nil
	case err != nil || start != json.Delim('['):
		return false, errNoJSON
	}
	for decoder.More() {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return false, errNoJSON
		}
		object, cost, err := readObject(raw)
		if err != nil {
			return false, err
		}
		if more, err := each(object, cost); !more || err != nil {
			return false, err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return false, errNoJSON
	}
	return true, nil
}
