package xds

import (
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	csds "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// statusOf fetches the state of the Envoys whose id is exactly id, or of all.
func statusOf(t *testing.T, p *inProcess, id string) []*csds.ClientConfig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req := &csds.ClientStatusRequest{}
	if id != "" {
		req.NodeMatchers = []*matcherv3.NodeMatcher{{
			NodeId: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id}},
		}}
	}
	fetched, err := csds.NewClientStatusDiscoveryServiceClient(p.conn).FetchClientStatus(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := csds.NewClientStatusDiscoveryServiceClient(p.conn).StreamClientStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	streamed, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(fetched.GetConfig()) != len(streamed.GetConfig()) {
		t.Errorf("fetched %d and streamed %d states", len(fetched.GetConfig()), len(streamed.GetConfig()))
	}
	return streamed.GetConfig()
}

// summary is "name status" of each resource that is not a cluster in sync.
func summary(config *csds.ClientConfig) []string {
	var lines []string
	for _, r := range config.GetGenericXdsConfigs() {
		if r.GetTypeUrl() == clusterType && r.GetConfigStatus() == csds.ConfigStatus_SYNCED {
			continue
		}
		line := r.GetName() + " " + r.GetConfigStatus().String()
		if r.GetErrorState() != nil {
			line += " " + r.GetErrorState().GetDetails()
		}
		lines = append(lines, line)
	}
	return lines
}

func TestClientStatusShowsWhatEachEnvoyHas(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a"), bothListeners)
	p.settled(t, testInfra)
	configs := statusOf(t, p, "pod-1")
	if len(configs) != 1 || configs[0].GetNode().GetCluster() != testInfra {
		t.Fatalf("got %v", configs)
	}
	if got, want := summary(configs[0]), []string{"https SYNCED", "kube-api SYNCED"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	clusters := c.expect(clusterType, targetsOf("b"), nil)
	if got := summary(statusOf(t, p, "")[0]); !slices.Contains(got, "clusters/b/oauth-openshift STALE") || !slices.Contains(got, "https NOT_SENT") {
		t.Errorf("while clusters are under way: %q", got)
	}
	c.ack(clusters)
	c.nack(c.expect(listenerType, bothListeners, nil), "bad")
	c.nack(c.expect(listenerType, []string{"https"}, nil), "cannot bind")
	c.ack(c.expect(listenerType, []string{"kube-api"}, nil))
	p.settled(t, testInfra)
	configs = statusOf(t, p, "")
	if got, want := summary(configs[0]), []string{"https ERROR cannot bind", "kube-api SYNCED"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, r := range configs[0].GetGenericXdsConfigs() {
		if r.GetName() == "https" && (r.GetXdsConfig() == nil || r.GetErrorState().GetFailedConfiguration() == nil ||
			r.GetVersionInfo() == r.GetErrorState().GetVersionInfo()) {
			t.Error("the last good and the refused configuration of https should both be shown")
		}
	}
	if configs := statusOf(t, p, "pod-2"); len(configs) != 0 {
		t.Errorf("an Envoy that is not there: %v", configs)
	}
}

func TestClientStatusMatchers(t *testing.T) {
	p := serveInProcess(t)
	client := csds.NewClientStatusDiscoveryServiceClient(p.conn)
	for _, req := range []*csds.ClientStatusRequest{
		{NodeMatchers: []*matcherv3.NodeMatcher{{NodeMetadatas: []*matcherv3.StructMatcher{{}}}}},
		{NodeMatchers: []*matcherv3.NodeMatcher{{NodeId: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "("}},
		}}}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if _, err := client.FetchClientStatus(ctx, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
		cancel()
	}
	for _, c := range []struct {
		m    *matcherv3.StringMatcher
		want bool
	}{
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "POD-1"}}, false},
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "POD-1"}, IgnoreCase: true}, true},
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "pod"}}, true},
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: "-2"}}, false},
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: "d-"}}, true},
		{&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "pod"}}}, false},
		{nil, true},
	} {
		match, err := stringMatch(c.m)
		if err != nil || match("pod-1") != c.want {
			t.Errorf("%v: %v, want %v", c.m, err, c.want)
		}
	}
}

// Every typed config that is ever sent can be decoded by a client that has no proto files.
func TestReflectionKnowsAllThatIsSent(t *testing.T) {
	p := serveInProcess(t)
	text, err := json.Marshal(mustBuild(t, withApps(page("a", "b"), "a"), Options{}))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]bool{}
	for _, m := range regexp.MustCompile(`"@type":"type.googleapis.com/([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		types[m[1]] = true
	}
	for _, typeURL := range servedTypes {
		types[strings.TrimPrefix(typeURL, typePrefix)] = true
	}
	if len(types) < 14 {
		t.Fatalf("only %d types in the snapshot: %v", len(types), slices.Sorted(maps.Keys(types)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(p.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	var services []string
	for _, s := range ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	for _, want := range []string{"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy.service.status.v3.ClientStatusDiscoveryService"} {
		if !slices.Contains(services, want) {
			t.Errorf("%s is not among the services %v", want, services)
		}
	}
	for name := range types {
		response := ask(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		})
		if len(response.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s: %v", name, response.GetErrorResponse())
		}
	}
}
