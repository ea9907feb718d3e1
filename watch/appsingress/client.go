package appsingress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// requestTime bounds each request but watches.
	requestTime = 10 * time.Second
	// watchTime is how long one watch lasts.
	watchTime = 5 * time.Minute
	// pingAfter is how long a connection may be silent before it is pinged, and pingTime how long the answer may take: a
	// watch of a server that hangs ends after both.
	pingAfter, pingTime = 10 * time.Second, 5 * time.Second
	// fieldOwner is ours, in hosted clusters.
	fieldOwner = "oooi"
)

// errNoAnswer: the API server did not answer in time.
var errNoAnswer = fmt.Errorf("no answer within %s", requestTime)

// errUnfinalized: there is something to be written, and it may not be yet.
var errUnfinalized = errors.New("nothing may be made yet")

// requestError is a request to a hosted cluster that failed.
type requestError struct {
	what  string
	write bool
	err   error
}

func (e *requestError) Error() string { return e.what + ": " + stable(e.err) }
func (e *requestError) Unwrap() error { return e.err }

// hosted is a client of one hosted cluster. It has its own transport, so that none of client-go's outlives it, and decodes what
// it reads itself: client-go takes whatever comes, and unfolds it.
type hosted struct {
	access      *access
	rest        rest.Interface
	transport   *http.Transport
	where       string
	failed      func()
	lead        func() bool // whether anything may be written; nil: yes
	unfinalized bool        // nothing may be written, as nothing would take it away
	// decoding has room for those who decode. It is held for that alone, never while a server is waited for: one that hangs
	// must keep nobody else from looking.
	decoding chan struct{}
	// budget of the look that runs. It is the goroutine's of the looks, watches do not touch it.
	budget *budget

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// connect makes a client for the API server that the addresses lead to. It dials when it is used. Decoding is shared with the
// clients of other hosted clusters. Failed is called at each request that fails.
func connect(a *access, addresses []string, port int32, decoding chan struct{}, failed func()) (*hosted, error) {
	if len(addresses) == 0 || port <= 0 {
		return nil, errors.New("the management cluster has no address of its API server")
	}
	h := &hosted{access: a, decoding: decoding, budget: newBudget(), failed: failed, conns: map[net.Conn]struct{}{}}
	var targets []string
	for _, address := range addresses {
		targets = append(targets, net.JoinHostPort(address, strconv.Itoa(int(port))))
	}
	h.where = strings.Join(targets, ", ")
	h.transport = &http.Transport{
		// No proxy of the environment: it is no place for a tenant's credentials.
		Proxy:       nil,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx, targets) },
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: a.tlsName, RootCAs: a.roots, Certificates: a.certificates,
		},
		TLSHandshakeTimeout: requestTime,
		ForceAttemptHTTP2:   true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTime, WriteByteTimeout: requestTime,
			MaxReceiveBufferPerStream: streamBytes, MaxReceiveBufferPerConnection: connectionBytes,
		},
		MaxResponseHeaderBytes: headerBytes,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        90 * time.Second,
	}
	config := &rest.Config{
		Host: a.server.String(), BearerToken: a.token, Username: a.username, Password: a.password,
		UserAgent: "oooi", WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeJSON, ContentType: runtime.ContentTypeJSON,
			GroupVersion: &schema.GroupVersion{}, NegotiatedSerializer: statuses,
		},
		// The worker has a pace of its own.
		QPS: -1,
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, boundedAnswers{h.transport, h})
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: wrapped,
		// Whoever answers with a redirect would be sent the credentials again, in the clear if it likes.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if h.rest, err = rest.UnversionedRESTClientForConfigAndClient(config, client); err != nil {
		return nil, err
	}
	return h, nil
}

// statuses is what client-go decodes: errors (metav1.Status), and nothing else.
var statuses = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

// begin gives the look that begins its budget.
func (h *hosted) begin() { h.budget = newBudget() }

// dial tries the addresses one after the other.
func (h *hosted) dial(ctx context.Context, targets []string) (net.Conn, error) {
	var errs []error
	for i, target := range targets {
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if deadline, bounded := ctx.Deadline(); bounded && i < len(targets)-1 {
			attempt, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(targets)-i))
		}
		conn, err := (&net.Dialer{Timeout: requestTime}).DialContext(attempt, "tcp", target)
		cancel()
		if err == nil {
			return h.keep(conn)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// keep remembers a connection, for close.
func (h *hosted) keep(conn net.Conn) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		_ = conn.Close() // nothing was sent
		return nil, net.ErrClosed
	}
	kept := &keptConn{Conn: conn, hosted: h}
	h.conns[kept] = struct{}{}
	return kept, nil
}

// keptConn is a connection that its client knows of.
type keptConn struct {
	net.Conn
	hosted *hosted
}

func (c *keptConn) Close() error {
	c.hosted.mu.Lock()
	delete(c.hosted.conns, c)
	c.hosted.mu.Unlock()
	return c.Conn.Close()
}

// close ends every connection, those that wait for an answer too.
func (h *hosted) close() {
	h.transport.CloseIdleConnections()
	h.mu.Lock()
	h.closed = true
	var open []*keptConn
	for conn := range h.conns {
		open = append(open, conn.(*keptConn))
	}
	h.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close() // nobody waits for what it would have said
	}
}

// path of a kind, or of one object.
func (k kind) path(namespace, name string) []string {
	path := []string{"apis", k.group, k.version}
	if k.group == "" {
		path = []string{"api", k.version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	if path = append(path, k.plural); name != "" {
		path = append(path, name)
	}
	return path
}

// do makes one request and gives the answer to decode, if there is one. Not found is an error like any other, but none that counts.
func (h *hosted) do(ctx context.Context, what string, write bool, request *rest.Request, decode func(raw []byte) error) error {
	if write && h.lead != nil && !h.lead() {
		return errAgain // by then there will be other orders
	}
	if write && h.unfinalized {
		return errUnfinalized
	}
	bounded, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	h.budget.exceeded = false
	result := request.Do(bounded)
	err := result.Error()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && bounded.Err() != nil:
		err = errNoAnswer
	case h.budget.exceeded && h.budget.bytes < 0:
		err = fmt.Errorf("its answers have more than %d MiB, the last to %q", lookBytes>>20, what)
	case h.budget.exceeded:
		err = fmt.Errorf("the answer to %q has more than %d MiB", what, answerBytes>>20)
	case err == nil && decode != nil:
		raw, _ := result.Raw() // its error is that of the result
		if err = h.decode(ctx, func() error { return decode(raw) }); err != nil && ctx.Err() == nil {
			err = fmt.Errorf("the answer to %q: %w", what, err)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		h.failed()
	}
	return &requestError{what: what, write: write, err: err}
}

// decode has few decode at once: what is in memory in between is much more than what is kept.
func (h *hosted) decode(ctx context.Context, decode func() error) error {
	select {
	case h.decoding <- struct{}{}:
		defer func() { <-h.decoding }()
		return decode()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// list lists one kind, in all namespaces, a page at a time, until the callback has enough or fails. Cost is that of the object. It
// returns the resourceVersion of the list.
func (h *hosted) list(ctx context.Context, k kind, namespace string, options metav1.ListOptions, each func(object *unstructured.Unstructured, cost int) (more bool, err error)) (version string, err error) {
	if options.Limit == 0 {
		options.Limit = pageSize
	}
	for n := 0; ; n++ {
		what := "list " + k.plural
		if n == maxPages {
			return "", &requestError{what: what, err: fmt.Errorf("the answers to %q have no end after %d pages", what, n)}
		}
		var page listPage
		var more bool
		if err := h.do(ctx, what, false, h.rest.Get().AbsPath(k.path(namespace, "")...).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion),
			func(raw []byte) (err error) {
				page, more, err = readPage(raw, each)
				return err
			}); err != nil {
			return "", err
		}
		if options.Continue = page.Continue; !more || options.Continue == "" {
			return page.ResourceVersion, nil
		}
	}
}

// all lists all objects of one kind.
func (h *hosted) all(ctx context.Context, k kind, namespace string, options metav1.ListOptions) (objects []*unstructured.Unstructured, version string, err error) {
	version, err = h.list(ctx, k, namespace, options, func(object *unstructured.Unstructured, cost int) (bool, error) {
		objects = append(objects, object)
		return true, h.budget.keep(cost)
	})
	return objects, version, err
}

// get reads one object; nil: it is not there, or its kind is not.
func (h *hosted) get(ctx context.Context, k kind, namespace, name string) (object *unstructured.Unstructured, err error) {
	err = h.do(ctx, "get "+k.String(namespace, name), false, h.rest.Get().AbsPath(k.path(namespace, name)...), func(raw []byte) (err error) {
		object, _, err = readObject(raw)
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// apply writes one object, server-side. With the UID of one that is there and ours, what others changed is put back;
// without, an object that somebody made just now is a conflict.
func (h *hosted) apply(ctx context.Context, k kind, wanted *unstructured.Unstructured, uid types.UID) (applied *unstructured.Unstructured, err error) {
	wanted = wanted.DeepCopy()
	options := metav1.PatchOptions{FieldManager: fieldOwner, FieldValidation: metav1.FieldValidationIgnore}
	if uid != "" {
		force := true
		wanted.SetUID(uid)
		options.Force = &force
	}
	content, err := json.Marshal(wanted.Object)
	if err != nil {
		return nil, err
	}
	request := h.rest.Patch(types.ApplyPatchType).AbsPath(k.path(wanted.GetNamespace(), wanted.GetName())...).Body(content).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion)
	err = h.do(ctx, "apply "+k.String(wanted.GetNamespace(), wanted.GetName()), true, request, func(raw []byte) (err error) {
		applied, _, err = readObject(raw)
		return err
	})
	return applied, err
}

// remove deletes this very object. One that is gone, or another of its name by now, is no error.
func (h *hosted) remove(ctx context.Context, k kind, object *unstructured.Unstructured) error {
	if object.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := object.GetUID()
	content, err := json.Marshal(metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil {
		return err
	}
	request := h.rest.Delete().AbsPath(k.path(object.GetNamespace(), object.GetName())...).Body(content)
	err = h.do(ctx, "delete "+k.String(object.GetNamespace(), object.GetName()), true, request, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// isRequest tells whether an error is about a request that was made.
func isRequest(err error) bool {
	var request *requestError
	return errors.As(err, &request)
}

// isAccess tells whether an error means that the hosted cluster cannot be asked, and not that it refuses one thing.
func isAccess(err error) bool {
	var request *requestError
	if !errors.As(err, &request) {
		return false
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return true
	}
	// What an API server refuses to write, an admission webhook that cannot be reached included, is the object's trouble.
	return !request.write || apierrors.IsUnauthorized(err)
}

// isCredential tells whether new content of the Secret may help.
func isCredential(err error) bool {
	var verification *tls.CertificateVerificationError
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || errors.As(err, &verification)
}

// cause is why the hosted cluster cannot be asked, for a person.
func (h *hosted) cause(err error, now time.Time) string {
	var request *requestError
	if errors.As(err, &request) {
		err = request.err
	}
	text := stable(err)
	expired := !h.access.expires.IsZero() && now.After(h.access.expires)
	switch {
	case apierrors.IsUnauthorized(err) && expired:
		text = fmt.Sprintf("it refuses the %s of the kubeconfig, which expired on %s", h.access.credential, h.access.expires.UTC().Format(time.RFC3339))
	case apierrors.IsUnauthorized(err):
		text = fmt.Sprintf("it refuses the %s of the kubeconfig (%s)", h.access.credential, text)
	}
	return cut(fmt.Sprintf("API server %s at %s: %s", h.access.server.Host, h.where, text))
}
