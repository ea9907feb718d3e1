package vlanpods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/stack"
	"github.com/densityops/oooi/examples"
)

const (
	// publicDNS is the name server of the zone. The one that deploy/examples/external-dns names is the upstream of the VLAN here.
	publicDNS            = "198.51.100.54"
	dnsNamespace         = "external-dns"
	dnsImage             = "registry.example.com/external-dns:v0.21.0"
	ownerAPI, ownerOAuth = "management-api", "management-oauth"
)

// testNames has the two ExternalDNS of deploy/examples/external-dns publish the API servers and OAuth servers of both clusters, each
// at the address of its own Service and at no other one. OAuth's are the Services as oooi writes them.
func (w publicSide) testNames(t *testing.T) {
	w.startPublishers(t)
	apiA, apiB := w.publishAPI(t, clusterA, ""), w.publishAPI(t, clusterB, "")
	if apiA == apiB {
		t.Fatalf("both API servers are at %s", apiA)
	}
	w.published(t, "api."+domain(clusterA), ownerAPI, apiA)
	w.published(t, "api."+domain(clusterB), ownerAPI, apiB)
	w.published(t, oauthA, ownerOAuth, vipA)
	w.published(t, oauthB, ownerOAuth, vipB)
	for name, want := range map[string]string{oauthA: clusterA + "/oauth-openshift", oauthB: clusterB + "/oauth-openshift"} {
		w.awaitByName(t, name, 443, want)
	}
	w.awaitByName(t, "api."+domain(clusterA), 6443, clusterA+"/kube-apiserver")
	w.awaitByName(t, "api."+domain(clusterB), 6443, clusterB+"/kube-apiserver")

	const moved = "198.51.100.13"
	w.attach(t, clusterA, asOnThePage(clusterA, otherPoolA, ""))
	w.publishAPI(t, clusterA, moved)
	w.awaitPublic(t, clusterA, otherVIPA)
	w.published(t, oauthA, ownerOAuth, otherVIPA)
	w.published(t, "api."+domain(clusterA), ownerAPI, moved)
	w.awaitByName(t, oauthA, 443, clusterA+"/oauth-openshift")
	w.awaitByName(t, "api."+domain(clusterA), 6443, clusterA+"/kube-apiserver")
	if err := w.opens(t.Context(), otherVIPA, onlyOAuthA); err != nil {
		t.Error(err)
	}
	awaitSilence(t, vipA)

	w.attach(t, clusterA, "{enabled: false}")
	w.published(t, oauthA, ownerOAuth)
	w.published(t, oauthB, ownerOAuth, vipB)
	w.published(t, "api."+domain(clusterA), ownerAPI, moved)
	w.published(t, "api."+domain(clusterB), ownerAPI, apiB)

	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
	w.published(t, oauthA, ownerOAuth, vipA)
}

// startPublishers starts the name server, and both ExternalDNS as `kubectl apply -k` does, in pods. They are gone after the test, as
// are the addresses of the API servers.
func (w publicSide) startPublishers(t *testing.T) {
	t.Helper()
	if err := w.network.Outside(netip.MustParseAddr(publicDNS)); err != nil {
		t.Fatal(err)
	}
	server, err := hosted.StartNameServer(t.Context(), "", t.TempDir(), "clusters.example.com", netip.MustParseAddrPort(publicDNS+":53"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(server.Tail(20))
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	binary, err := stack.ExternalDNS()
	if err != nil {
		t.Fatal(err)
	}
	image, err := kubelet.NewImage(filepath.Join(os.Getenv(imagesFolder), "external-dns"), map[string]string{"/bin/external-dns": binary})
	if err != nil {
		t.Fatal(err)
	}
	image.Entrypoint = []string{"/bin/external-dns"}
	w.nodes.SetImage(dnsImage, image)

	manifests, err := kustomize(t.Context(), "deploy/examples/external-dns")
	if err != nil {
		t.Fatal(err)
	}
	// What a user has to change of it: the server, and the Secret to make.
	manifests = bytes.ReplaceAll(manifests, []byte("=198.51.100.53\n"), []byte("="+publicDNS+"\n"))
	manifests = fmt.Appendf(manifests, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: tsig, namespace: %s}\nstringData: {secret: %q}\n", dnsNamespace, server.Secret())
	deployments := w.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(dnsNamespace)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.nodes.Tails(20))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := deployments.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		err = errors.Join(err, w.hideAPIs(ctx), stack.Until(ctx, "the end of ExternalDNS", func(context.Context) error {
			if names := w.nodes.Running(dnsNamespace); len(names) > 0 {
				return fmt.Errorf("pods run: %v", names)
			}
			return nil
		}))
		if err != nil {
			t.Error(err)
		}
	})
	if _, err := w.Apply(t.Context(), "kubectl", manifests); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"external-dns-api", "external-dns-oauth"} {
		eventually(t, name, func(ctx context.Context) error { return w.available(ctx, dnsNamespace, name) })
	}
}

// publishAPI has the API server of a cluster published as HyperShift does, by a Service of type LoadBalancer, and returns its address: a
// certain one unless that is empty.
func (w publicSide) publishAPI(t *testing.T, cluster, address string) string {
	t.Helper()
	annotations := "external-dns.alpha.kubernetes.io/hostname: api." + domain(cluster)
	if address != "" {
		annotations += ", metallb.universe.tf/loadBalancerIPs: " + address
	}
	if _, err := w.Apply(t.Context(), "neighbours", fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata:
  name: kube-apiserver
  namespace: clusters-%s
  labels: {app: kube-apiserver, hypershift.openshift.io/control-plane-component: kube-apiserver}
  annotations: {%s}
spec:
  type: LoadBalancer
  ports: [{port: 6443, targetPort: client}]
`, cluster, annotations)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an address of the API server of "+cluster, func(ctx context.Context) error {
		service, err := w.service(ctx, "clusters-"+cluster, "kube-apiserver")
		if err != nil {
			return err
		}
		ingress := service.Status.LoadBalancer.Ingress
		if len(ingress) != 1 || address != "" && ingress[0].IP != address {
			return fmt.Errorf("it has %v", ingress)
		}
		address = ingress[0].IP
		return nil
	})
	return address
}

// hideAPIs makes the Services of API servers what they are for all other tests.
func (w publicSide) hideAPIs(ctx context.Context) error {
	text, err := examples.TwoClusters.ReadFile("two-clusters/neighbours.yaml")
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(document, "kind: Service\n") && strings.Contains(document, "name: kube-apiserver\n") {
			if _, err := w.Apply(ctx, "neighbours", []byte(document)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask asks the name server of the zone from the public network.
func ask(ctx context.Context, name string, kind uint16) ([]string, error) {
	var answer *dns.Msg
	err := outsider.Do(func() (err error) {
		client := dns.Client{Timeout: 2 * time.Second}
		answer, _, err = client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), kind), publicDNS+":53")
		return err
	})
	if err != nil {
		return nil, err
	}
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return nil, errors.New(dns.RcodeToString[answer.Rcode])
	}
	var records []string
	for _, record := range answer.Answer {
		switch record := record.(type) {
		case *dns.A:
			records = append(records, record.A.String())
		case *dns.TXT:
			records = append(records, strings.Join(record.Txt, ""))
		default:
			records = append(records, record.String())
		}
	}
	slices.Sort(records)
	return records, nil
}

// published waits until a name has just these addresses in the public DNS, by this owner; none: it has no owner either.
func (w publicSide) published(t *testing.T, name, owner string, addresses ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s at %v", name, addresses), func(ctx context.Context) error {
		got, err := ask(ctx, name, dns.TypeA)
		if err != nil {
			return err
		}
		owners, err := ask(ctx, "a-"+name, dns.TypeTXT)
		if err != nil {
			return err
		}
		owned := len(owners) == 1 && strings.Contains(owners[0], "external-dns/owner="+owner+",")
		if !slices.Equal(got, addresses) || owned != (len(addresses) > 0) {
			return fmt.Errorf("it is at %v, by %q", got, owners)
		}
		return nil
	})
}

// awaitByName waits until a machine on the public network that looks up a name gets to that server.
func (w publicSide) awaitByName(t *testing.T, name string, port uint16, want string) {
	t.Helper()
	eventually(t, name+" by name", func(ctx context.Context) error {
		addresses, err := ask(ctx, name, dns.TypeA)
		if err != nil {
			return err
		}
		if len(addresses) != 1 {
			return fmt.Errorf("its addresses are %v", addresses)
		}
		got, err := w.callAt(ctx, outsider, addresses[0], port, name)
		if err == nil && got != want {
			err = fmt.Errorf("got %s, want %s", got, want)
		}
		return err
	})
}
