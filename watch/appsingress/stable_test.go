package appsingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestSilence has a server that accepts and says nothing: whichever bound of a connection ends the waiting, the message is the same,
// so that a status is not written at each attempt.
func TestSilence(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	url := "https://" + silent.Addr().String()
	get := func(ctx context.Context, transport *http.Transport) error {
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for name, err := range map[string]error{
		"handshake":  get(t.Context(), &http.Transport{TLSHandshakeTimeout: time.Millisecond}),
		"connection": get(t.Context(), &http.Transport{DialContext: (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).DialContext}),
		"addresses": get(t.Context(), &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			_, err := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", silent.Addr().String())
			return nil, errors.Join(err, err)
		}}),
		"request": get(over, &http.Transport{}),
	} {
		if err == nil {
			t.Errorf("%s: there was an answer", name)
		} else if got := stable(err); got != errNoAnswer.Error() {
			t.Errorf("%s: %q, want %q (%v)", name, got, errNoAnswer, err)
		}
	}
}
