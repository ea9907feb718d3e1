package appsingress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
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
	// answerBytes bounds what one answer may have: a hosted cluster is its tenant's to fill.
	answerBytes = 16 << 20
	// pageSize of lists that may be long.
	pageSize = 100
	// maxObjects bounds what is kept of a list.
	maxObjects = 10_000
	// fieldOwner is ours, in hosted clusters.
	fieldOwner = "oooi"
)

// errNoAnswer: the API server did not answer in time.
var errNoAnswer = fmt.Errorf("no answer within %s", requestTime)

// requestError is a request to a hosted cluster that failed.
type requestError struct {
	what  string
	write bool
	err   error
}

func (e *requestError) Error() string { return e.what + ": " + stable(e.err) }
func (e *requestError) Unwrap() error { return e.err }

// hosted is a client of one hosted cluster. It has its own transport, so that none of client-go's outlives it.
type hosted struct {
	access    *access
	dynamic   dynamic.Interface
	transport *http.Transport
	where     string
	failed    func()

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// connect makes a client for the API server that the addresses lead to. It dials when it is used. Failed is called at each request
// that fails.
func connect(a *access, addresses []string, port int32, failed func()) (*hosted, error) {
	if len(addresses) == 0 || port <= 0 {
		return nil, errors.New("the management cluster has no address of its API server")
	}
	h := &hosted{access: a, failed: failed, conns: map[net.Conn]struct{}{}}
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
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTime, WriteByteTimeout: requestTime},
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
	}
	config := &rest.Config{
		Host: a.server.String(), BearerToken: a.token, Username: a.username, Password: a.password,
		UserAgent: "oooi", WarningHandler: rest.NoWarnings{},
		// The worker has a pace of its own.
		QPS: -1,
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, boundedAnswers{h.transport})
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: wrapped,
		// Whoever answers with a redirect would be sent the credentials again, in the clear if it likes.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if h.dynamic, err = dynamic.NewForConfigAndClient(config, client); err != nil {
		return nil, err
	}
	return h, nil
}

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

// boundedAnswers ends answers that are too large, but watches.
type boundedAnswers struct{ next http.RoundTripper }

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err == nil && request.URL.Query().Get("watch") == "" {
		response.Body = &boundedBody{response.Body, answerBytes}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d MiB", answerBytes>>20)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// do makes one request. Not found is an error like any other, but none that counts.
func (h *hosted) do(ctx context.Context, what string, write bool, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := request(bounded)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if bounded.Err() != nil {
		err = errNoAnswer
	}
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		h.failed()
	}
	return &requestError{what: what, write: write, err: err}
}

// list lists one kind, in all namespaces, a page at a time, until the callback has enough. It returns the resourceVersion of the list.
func (h *hosted) list(ctx context.Context, k kind, namespace string, options metav1.ListOptions, each func(*unstructured.Unstructured) (more bool)) (version string, err error) {
	options.Limit = pageSize
	for {
		var page *unstructured.UnstructuredList
		if err := h.do(ctx, "list "+k.plural, false, func(ctx context.Context) (err error) {
			page, err = h.dynamic.Resource(k.resource()).Namespace(namespace).List(ctx, options)
			return err
		}); err != nil {
			return "", err
		}
		version = page.GetResourceVersion()
		for i := range page.Items {
			if !each(&page.Items[i]) {
				return version, nil
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return version, nil
		}
	}
}

// all lists all objects of one kind.
func (h *hosted) all(ctx context.Context, k kind, namespace string, options metav1.ListOptions) (objects []*unstructured.Unstructured, version string, err error) {
	version, err = h.list(ctx, k, namespace, options, func(object *unstructured.Unstructured) bool {
		objects = append(objects, object)
		return len(objects) <= maxObjects
	})
	if err == nil && len(objects) > maxObjects {
		err = &requestError{what: "list " + k.plural, err: fmt.Errorf("there are more than %d", maxObjects)}
	}
	return objects, version, err
}

// get reads one object; nil: it is not there, or its kind is not.
func (h *hosted) get(ctx context.Context, k kind, namespace, name string) (*unstructured.Unstructured, error) {
	var object *unstructured.Unstructured
	err := h.do(ctx, "get "+k.String(namespace, name), false, func(ctx context.Context) (err error) {
		object, err = h.dynamic.Resource(k.resource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// apply writes one object, server-side. With the UID of one that is there and ours, what others changed is put back;
// without, an object that somebody made just now is a conflict.
func (h *hosted) apply(ctx context.Context, k kind, wanted *unstructured.Unstructured, uid types.UID) (*unstructured.Unstructured, error) {
	wanted = wanted.DeepCopy()
	options := metav1.PatchOptions{FieldManager: fieldOwner, FieldValidation: metav1.FieldValidationIgnore}
	if uid != "" {
		force := true
		wanted.SetUID(uid)
		options.Force = &force
	}
	raw, err := json.Marshal(wanted.Object)
	if err != nil {
		return nil, err
	}
	var applied *unstructured.Unstructured
	err = h.do(ctx, "apply "+k.String(wanted.GetNamespace(), wanted.GetName()), true, func(ctx context.Context) (err error) {
		applied, err = h.dynamic.Resource(k.resource()).Namespace(wanted.GetNamespace()).Patch(ctx, wanted.GetName(), types.ApplyPatchType, raw, options)
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
	err := h.do(ctx, "delete "+k.String(object.GetNamespace(), object.GetName()), true, func(ctx context.Context) error {
		return h.dynamic.Resource(k.resource()).Namespace(object.GetNamespace()).Delete(ctx, object.GetName(),
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// watch calls event at each change of objects of a kind, until the watch ends.
func (h *hosted) watch(ctx context.Context, k kind, selector, version string, event func()) {
	seconds := int64(watchTime / time.Second)
	w, err := h.dynamic.Resource(k.resource()).Watch(ctx, metav1.ListOptions{
		LabelSelector: selector, ResourceVersion: version, TimeoutSeconds: &seconds, AllowWatchBookmarks: true,
	})
	if err != nil {
		return // the next look tells why
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.ResultChan():
			if !open || e.Type == watch.Error {
				return
			}
			if e.Type != watch.Bookmark {
				event()
			}
		}
	}
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

// changing are the parts of errors that differ from one attempt to the next.
var changing = regexp.MustCompile(`stream ID \d+|current time \S+ is|trace[iI][dD]\S+`)

// stable is the text of an error, without what changes from one attempt to the next: who writes it into a status must not write
// it each time.
func stable(err error) string {
	var (
		wrapped  *url.Error
		op       *net.OpError
		expired  x509.CertificateInvalidError
		dnsError *net.DNSError
	)
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return fmt.Sprintf("x509: its certificate is valid from %s to %s only", expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &dnsError):
		return "lookup " + dnsError.Name + ": " + dnsError.Err
	case errors.As(err, &op):
		plain := *op
		plain.Source = nil
		return plain.Error()
	case errors.As(err, &wrapped):
		err = wrapped.Err
	}
	return changing.ReplaceAllString(err.Error(), "…")
}

// messageLength is how long a part of a message may be that comes from elsewhere.
const messageLength = 500

// cut makes a text that comes from elsewhere fit for a message: one line, not too long.
func cut(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if runes := []rune(text); len(runes) > messageLength {
		return string(runes[:messageLength]) + "…"
	}
	return text
}
