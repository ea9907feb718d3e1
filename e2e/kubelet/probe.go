package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe runs the probes of a container that has just been started, until ctx ends.
func (c *container) probe(ctx context.Context, group *sync.WaitGroup) {
	process := c.process
	started := make(chan struct{})
	if c.spec.StartupProbe == nil {
		close(started)
	} else {
		c.watch(ctx, group, c.spec.StartupProbe, nil, func(ok bool) (done bool) {
			if !ok {
				c.unhealthy(ctx, group, process, c.spec.StartupProbe)
				return true
			}
			c.pod.change(func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
			close(started)
			return true
		})
	}
	if c.spec.ReadinessProbe != nil {
		c.watch(ctx, group, c.spec.ReadinessProbe, started, func(ok bool) bool {
			c.pod.change(func() { c.ready = ok })
			return false
		})
	}
	if c.spec.LivenessProbe != nil {
		c.watch(ctx, group, c.spec.LivenessProbe, started, func(ok bool) bool {
			if !ok {
				c.unhealthy(ctx, group, process, c.spec.LivenessProbe)
			}
			return !ok
		})
	}
}

// unhealthy stops a container that its probe has given up on. It is started again like any that has ended.
func (c *container) unhealthy(ctx context.Context, group *sync.WaitGroup, p *process, probe *corev1.Probe) {
	seconds := first(probe.TerminationGracePeriodSeconds, c.pod.spec().TerminationGracePeriodSeconds)
	grace := 30 * time.Second
	if seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	c.pod.kubelet.config.Log.WarnContext(ctx, "a probe has failed: restarting", "pod", c.pod.name(), "container", c.spec.Name)
	group.Go(func() { c.stop(p, grace) })
}

// watch runs one probe once wait is closed, and tells of each success or failure that reaches its threshold, until told is done.
func (c *container) watch(ctx context.Context, group *sync.WaitGroup, probe *corev1.Probe, wait <-chan struct{}, told func(ok bool) (done bool)) {
	group.Go(func() {
		if wait != nil {
			select {
			case <-ctx.Done():
				return
			case <-wait:
			}
		}
		if !pause(ctx, time.Duration(probe.InitialDelaySeconds)*time.Second) {
			return
		}
		var successes, failures int32
		for {
			if err := c.attempt(ctx, probe); err == nil {
				successes, failures = successes+1, 0
			} else {
				successes, failures = 0, failures+1
			}
			if ctx.Err() != nil {
				return
			}
			if successes == max(probe.SuccessThreshold, 1) || failures == max(probe.FailureThreshold, 1) {
				if told(failures == 0) {
					return
				}
			}
			if !pause(ctx, time.Duration(max(probe.PeriodSeconds, 1))*time.Second) {
				return
			}
		}
	})
}

// pause waits and tells whether ctx is still going on.
func pause(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	return ctx.Err() == nil
}

// attempt asks once.
func (c *container) attempt(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case probe.HTTPGet != nil:
		return c.get(ctx, probe.HTTPGet)
	case probe.TCPSocket != nil:
		address, err := c.endpoint(probe.TCPSocket.Host, probe.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return errors.New("the test kubelet knows httpGet and tcpSocket only")
}

func (c *container) get(ctx context.Context, action *corev1.HTTPGetAction) error {
	address, err := c.endpoint(action.Host, action.Port)
	if err != nil {
		return err
	}
	if action.Scheme == corev1.URISchemeHTTPS {
		return errors.New("the test kubelet probes by plain HTTP only")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+action.Path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/test")
	for _, header := range action.HTTPHeaders {
		request.Header.Set(header.Name, header.Value)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", response.StatusCode)
	}
	return nil
}

// endpoint is where a probe goes: the Pod's address unless said otherwise, and a port by number or by name.
func (c *container) endpoint(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = c.pod.sandbox.address.String()
	}
	if port.Type == intstr.Int {
		return net.JoinHostPort(host, strconv.Itoa(port.IntValue())), nil
	}
	for _, p := range c.spec.Ports {
		if p.Name == port.StrVal {
			return net.JoinHostPort(host, strconv.Itoa(int(p.ContainerPort))), nil
		}
	}
	return "", fmt.Errorf("container %s has no port %q", c.spec.Name, port.StrVal)
}
