package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/e2e/stack"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// TestDeployment: two replicas that must not share a node get ready on one each, and their Service leads to them.
func TestDeployment(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: `+ns+`}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {app: web}}
      containers:
        - name: web
          image: shell
          command: [sh, -c, 'mkdir /tmp/www; echo $POD_NAME >/tmp/www/index.html; exec httpd -f -p $(PORT) -h /tmp/www']
          env:
            - {name: PORT, value: "8080"}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /index.html, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: `+ns+`}
spec:
  clusterIP: 172.30.7.7
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`)
	deployment(t, ns, "web")
	pods, err := nodes.Pods(t.Context(), ns, "app=web")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	on := map[string]int{}
	for _, p := range pods {
		names = append(names, p.Name)
		on[p.Spec.NodeName]++
	}
	if len(on) != 2 {
		t.Errorf("the replicas are on %v, want one on each node", on)
	}
	// From another pod, through kube-proxy: both must answer in the end.
	apply(t, pod(ns, "client", `exec sleep 3600`, ""))
	client := host(t, ns, "client")
	answered := map[string]bool{}
	eventually(t, "answers of both replicas at the ClusterIP", func(ctx context.Context) error {
		answer, err := client.Run(ctx, "curl", "-sS", "--max-time", "2", "http://172.30.7.7/index.html")
		if err != nil {
			return err
		}
		if name := strings.TrimSpace(answer); !slices.Contains(names, name) {
			t.Fatalf("%q answers, want one of %v", name, names)
		} else if answered[name] = true; len(answered) < 2 {
			return fmt.Errorf("only %s answers", name)
		}
		return nil
	})
}

// TestPrivileges holds the containers to what a runtime would give them.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	const (
		netAdminAndRaw = "0000000000003000"
		none           = "0000000000000000"
		// CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE SETFCAP
		usual = "00000000a80425fb"
	)
	for _, test := range []struct {
		name, security           string
		effective, bounding, nnp string
		id                       string
	}{
		{
			"root-with-two", "{runAsUser: 0, allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_ADMIN, NET_RAW]}}",
			netAdminAndRaw, netAdminAndRaw, "1", "uid=0(root) gid=0",
		},
		{
			"user-with-one", "{runAsUser: 65532, capabilities: {drop: [ALL], add: [NET_ADMIN, NET_RAW]}}",
			none, netAdminAndRaw, "0", "uid=65532(nonroot) gid=65532",
		},
		{"root-as-usual", "{runAsUser: 0}", usual, usual, "0", "uid=0(root) gid=0"},
		{"image-user", "{runAsNonRoot: true, capabilities: {drop: [ALL]}}", none, none, "0", "uid=65532(nonroot) gid=65532"},
		{"own-group", "{runAsUser: 1000, runAsGroup: 2000, capabilities: {drop: [ALL]}}", none, none, "0", "uid=1000 gid=2000 groups=2000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			apply(t, pod(ns, test.name, `cat /proc/self/status; id; echo done; exec sleep 3600`, "securityContext: "+test.security))
			log := printed(t, ns, test.name, "main", "done\n")
			for field, want := range map[string]string{
				"CapEff": test.effective, "CapPrm": test.effective, "CapInh": none, "CapAmb": none, "CapBnd": test.bounding, "NoNewPrivs": test.nnp,
			} {
				found := regexp.MustCompile(`(?m)^` + field + `:\s+(\S+)$`).FindStringSubmatch(log)
				if found == nil || found[1] != want {
					t.Errorf("%s: got %v, want %s", field, found, want)
				}
			}
			if !strings.Contains(log, test.id) {
				t.Errorf("id does not print %q:\n%s", test.id, log)
			}
		})
	}
}

// TestRunAsNonRoot: a container that must not be root and would be is not started.
func TestRunAsNonRoot(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `exec sleep 3600`, "securityContext: {runAsNonRoot: true, runAsUser: 0}"))
	eventually(t, "CreateContainerConfigError", func(ctx context.Context) error {
		p := get(ctx, t, ns, "main")
		statuses, _, _ := unstructured.NestedSlice(p.Object, "status", "containerStatuses")
		if text := fmt.Sprint(statuses); !strings.Contains(text, "CreateContainerConfigError") || !strings.Contains(text, "runAsNonRoot") {
			return errors.New(text)
		}
		return nil
	})
}

// TestReadOnlyRoot: only volumes can be written to, /proc/sys cannot, and none of the machine's files are there.
func TestReadOnlyRoot(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `
for file in /tmp/x /new /proc/sys/net/ipv4/ip_forward /etc/passwd /config/key; do
  if echo 1 2>/dev/null >$file; then echo "wrote $file"; else echo "refused $file"; fi
done
echo 1 >/state/x && echo wrote /state/x
ls /
cat /config/key /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo
hostname
echo done; exec sleep 3600`, `securityContext: {readOnlyRootFilesystem: true, runAsUser: 65532}
      volumeMounts: [{name: state, mountPath: /state}, {name: config, mountPath: /config}]`)+`
  volumes:
    - {name: state, emptyDir: {}}
    - {name: config, configMap: {name: config}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config, namespace: `+ns+`}
data: {key: value of the key}
`)
	log := printed(t, ns, "main", "main", "done\n")
	for _, line := range []string{
		"refused /tmp/x", "refused /new", "refused /proc/sys/net/ipv4/ip_forward", "refused /etc/passwd", "refused /config/key", "wrote /state/x",
		"value of the key" + ns, "\nmain\n",
	} {
		if !strings.Contains(log, line) {
			t.Errorf("%q is missing", line)
		}
	}
	if strings.Contains(log, "\nroot\n") || strings.Contains(log, "\nhome\n") {
		t.Error("the machine's files are there")
	}
	if t.Failed() {
		t.Log(log)
	}
}

// TestLowPorts: a user with no capability binds port 80 where the Pod's sysctl lets everybody, and nowhere else.
func TestLowPorts(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	const web = `httpd -f -p 80 -h /tmp || echo "failed: $?"; exec sleep 3600`
	const user = "securityContext: {runAsUser: 65532, capabilities: {drop: [ALL]}}"
	apply(t, pod(ns, "plain", web, user))
	apply(t, pod(ns, "allowed", web, user+`
      readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}`)+`
  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "0"}]}
`)
	printed(t, ns, "plain", "main", "failed")
	eventually(t, "the web server on port 80", func(ctx context.Context) error {
		return condition(get(ctx, t, ns, "allowed"), "Ready")
	})
}

// TestCrash: a container that ends is started again in the same sandbox, with the same volumes and a fresh root.
func TestCrash(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `
echo start; ls /state /tmp
touch /state/volume /tmp/root; echo ready; exec sleep 3600`, `volumeMounts: [{name: state, mountPath: /state}]
      securityContext: {runAsUser: 0}`)+`
  volumes: [{name: state, emptyDir: {}}]
`)
	printed(t, ns, "main", "main", "ready\n")
	before := host(t, ns, "main")
	address := podIP(t, ns, "main")
	if err := nodes.Signal(ns, "main", "main", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a restart", func(ctx context.Context) error {
		statuses, _, _ := unstructured.NestedSlice(get(ctx, t, ns, "main").Object, "status", "containerStatuses")
		if len(statuses) != 1 {
			return fmt.Errorf("statuses: %v", statuses)
		}
		status := statuses[0].(map[string]any)
		code, _, _ := unstructured.NestedInt64(status, "lastState", "terminated", "exitCode")
		if status["restartCount"] != int64(1) || code != 137 {
			return fmt.Errorf("status: %v", status)
		}
		return nil
	})
	log := printed(t, ns, "main", "main", "ready\nstart")
	log = printed(t, ns, "main", "main", log[:strings.LastIndex(log, "start")]+"start\n/state:\nvolume\n\n/tmp:\nready\n")
	if after := host(t, ns, "main"); after != before || podIP(t, ns, "main") != address {
		t.Errorf("the sandbox is %s, and was %s\n%s", after, before, log)
	}
}

// TestDeletion: SIGTERM, the end of the container, and only then is the object gone, and the address with it.
func TestDeletion(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "polite", `trap 'echo asked; sleep 1; echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done`, ""))
	apply(t, pod(ns, "deaf", `trap '' TERM; echo ready; while :; do sleep 0.1; done`, "")+`
  terminationGracePeriodSeconds: 1
`)
	for _, name := range []string{"polite", "deaf"} {
		printed(t, ns, name, "main", "ready\n")
	}
	address := podIP(t, ns, "polite")
	for _, name := range []string{"polite", "deaf"} {
		if err := api.Dynamic.Resource(podResource).Namespace(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gone(t, ns, name)
	}
	if log := nodes.Log(ns, "polite", "main"); !strings.Contains(log, "asked\nbye\n") {
		t.Errorf("the container was not asked to end:\n%s", log)
	}
	eventually(t, "the end of the sandbox", func(ctx context.Context) error {
		if names := nodes.Running(ns); len(names) > 0 {
			return fmt.Errorf("still there: %v", names)
		}
		if routes, err := stack.Host("").Run(ctx, "ip", "route", "show", address); err != nil || strings.TrimSpace(routes) != "" {
			return errors.Join(errors.New(routes), err)
		}
		return nil
	})
}

// TestForcedDeletion: the object goes at once, and the container is killed.
func TestForcedDeletion(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `trap '' TERM; echo ready; while :; do sleep 0.1; done`, ""))
	printed(t, ns, "main", "main", "ready\n")
	now := int64(0)
	if err := api.Dynamic.Resource(podResource).Namespace(ns).Delete(t.Context(), "main", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the container", func(context.Context) error {
		if names := nodes.Running(ns); len(names) > 0 {
			return fmt.Errorf("still there: %v", names)
		}
		return nil
	})
}

// TestLiveness: a container whose liveness probe fails is asked to end and started again.
func TestLiveness(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `echo start; httpd -p 8080 -h /state; trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done`, `volumeMounts: [{name: state, mountPath: /state}]
      livenessProbe: {httpGet: {path: /alive, port: 8080}, periodSeconds: 1, failureThreshold: 2}`)+`
  volumes: [{name: state, emptyDir: {}}]
`)
	printed(t, ns, "main", "main", "start\nasked\nstart\n")
}

// TestAPI: a Pod reaches the API server with its token at the ClusterIP; cut off, it gets no answer, and its probes go on.
func TestAPI(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `
cat /var/run/secrets/kubernetes.io/serviceaccount/token >/state/token
echo "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
exec httpd -f -p 8080 -h /state`, `volumeMounts: [{name: state, mountPath: /state}]
      readinessProbe: {httpGet: {path: /token, port: 8080}, periodSeconds: 1, failureThreshold: 1}`)+`
  volumes: [{name: state, emptyDir: {}}]
`)
	printed(t, ns, "main", "main", "172.30.0.1:443\n")
	eventually(t, "the Pod", func(ctx context.Context) error { return condition(get(ctx, t, ns, "main"), "Ready") })
	h := host(t, ns, "main")
	token, err := h.Run(t.Context(), "curl", "-sS", "http://"+podIP(t, ns, "main")+":8080/token")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) (string, error) {
		return h.Run(ctx, "curl", "-sSk", "--max-time", "2", "-H", "Authorization: Bearer "+strings.TrimSpace(token), "-d", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`,
			"-H", "Content-Type: application/json", "https://172.30.0.1/apis/authentication.k8s.io/v1/selfsubjectreviews")
	}
	answered := func(ctx context.Context) error {
		answer, err := ask(ctx)
		if err != nil {
			return err
		}
		if !strings.Contains(answer, "system:serviceaccount:"+ns+":default") || !strings.Contains(answer, "authentication.kubernetes.io/pod-name") {
			return fmt.Errorf("answer: %s", answer)
		}
		return nil
	}
	eventually(t, "an answer of the API server", answered)
	if err := nodes.CutAPI(ns, "main", true); err != nil {
		t.Fatal(err)
	}
	if answer, err := ask(t.Context()); err == nil {
		t.Errorf("cut off from the API server, the Pod gets an answer: %s", answer)
	}
	if err := condition(get(t.Context(), t, ns, "main"), "Ready"); err != nil {
		t.Errorf("cut off from the API server: %v", err)
	}
	if err := nodes.CutAPI(ns, "main", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer of the API server after the cut", answered)
}

// TestVLAN: a Pod is plugged into the VLAN that its annotation names, without an address, and so is a worker; the cable can be
// pulled, the interface taken away and put back.
func TestVLAN(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, definition(ns, "vlan", "testvlan", "{}"))
	apply(t, definition(ns, "with-ipam", "testvlan", `{"type": "static", "addresses": [{"address": "192.0.2.50/24"}]}`))
	apply(t, plugged(pod(ns, "main", `exec sleep 3600`, ""), `[{"name": "vlan", "interface": "vlan0"}, {"name": "with-ipam", "interface": "other0", "mac": "52:54:00:00:00:50"}]`))
	worker, err := network.Worker("vlan-worker", "testvlan", "52:54:00:00:00:99")
	if err != nil {
		t.Fatal(err)
	}
	h := host(t, ns, "main")
	show := func(link string) string {
		out, err := h.Run(t.Context(), "ip", "-4", "addr", "show", "dev", link)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := show("vlan0"); strings.Contains(out, "inet") {
		t.Errorf("vlan0 has an address:\n%s", out)
	}
	if out := show("other0"); !strings.Contains(out, "inet 192.0.2.50/24") {
		t.Errorf("other0 has not the address that IPAM says:\n%s", out)
	}
	if _, err := worker.Run(t.Context(), "ip", "addr", "add", "192.0.2.60/24", "dev", "vlan0"); err != nil {
		t.Fatal(err)
	}
	reach := func(ctx context.Context) error {
		// A refused connection is an answer, too.
		conn, err := worker.Dial(ctx, stack.Call{}.Source, "192.0.2.50:9")
		if err == nil {
			return conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return err
	}
	eventually(t, "the Pod's answer to the worker", reach)
	if err := nodes.Carrier(ns, "main", "other0", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no carrier", func(context.Context) error {
		if out := show("other0"); !strings.Contains(out, "NO-CARRIER") {
			return errors.New(out)
		}
		return nil
	})
	if err := nodes.Carrier(ns, "main", "other0", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Pod's answer to the worker, with the cable back in", reach)
	if err := nodes.Unplug(ns, "main", "vlan0"); err != nil {
		t.Fatal(err)
	}
	if out, err := h.Run(t.Context(), "ip", "link", "show", "dev", "vlan0"); err == nil {
		t.Errorf("vlan0 is still there:\n%s", out)
	}
	if err := nodes.Plug(ns, "main", "vlan0"); err != nil {
		t.Fatal(err)
	}
	show("vlan0")
}

// TestMissingNetwork: a Pod whose NetworkAttachmentDefinition is not there waits for it, and says so.
func TestMissingNetwork(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, plugged(pod(ns, "main", `exec sleep 3600`, ""), "later@vlan0"))
	eventually(t, "a word of what is missing", func(ctx context.Context) error {
		statuses, _, _ := unstructured.NestedSlice(get(ctx, t, ns, "main").Object, "status", "containerStatuses")
		if !strings.Contains(fmt.Sprint(statuses), ns+"/later") {
			return fmt.Errorf("statuses: %v", statuses)
		}
		return nil
	})
	apply(t, definition(ns, "later", "latervlan", "{}"))
	eventually(t, "the Pod", func(ctx context.Context) error { return condition(get(ctx, t, ns, "main"), "Ready") })
}

// TestLose: a Pod that is lost with its node closes no connection, and the API server knows of nothing.
func TestLose(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, pod(ns, "main", `exec nc -ll -p 8080 -e cat`, "readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}"))
	eventually(t, "the Pod", func(ctx context.Context) error { return condition(get(ctx, t, ns, "main"), "Ready") })
	conn, err := stack.Host("").Dial(t.Context(), stack.Call{}.Source, podIP(t, ns, "main")+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := nodes.Lose(ns, "main"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection to a lost Pod ends with %v, want silence", err)
	}
	if err := condition(get(t.Context(), t, ns, "main"), "Ready"); err != nil {
		t.Errorf("the API server knows: %v", err)
	}
	// Nobody would ever end it.
	now := int64(0)
	if err := api.Dynamic.Resource(podResource).Namespace(ns).Delete(t.Context(), "main", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// pod is the manifest of a Pod with the one container main, which runs a shell script. More is further fields of the container.
func pod(namespace, name, script, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  containers:
    - name: main
      image: shell
      command: [sh, -c]
      args: [%q]
      %s`, name, namespace, strings.TrimSpace(script), more)
}

// plugged adds the annotation that asks for networks to the manifest of a Pod.
func plugged(manifest, networks string) string {
	return strings.Replace(manifest, "metadata: {", "metadata: {annotations: {k8s.v1.cni.cncf.io/networks: '"+networks+"'}, ", 1)
}

// definition is the manifest of a NetworkAttachmentDefinition.
func definition(namespace, name, bridge, ipam string) string {
	return fmt.Sprintf(`apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: %s, namespace: %s}
spec:
  config: '{"cniVersion": "0.3.1", "name": "%s", "type": "bridge", "bridge": "%s", "ipam": %s}'
`, name, namespace, name, bridge, ipam)
}

// host waits until a Pod has a sandbox.
func host(t *testing.T, namespace, name string) stack.Host {
	t.Helper()
	var h stack.Host
	eventually(t, "Pod "+name, func(context.Context) (err error) {
		h, err = nodes.Host(namespace, name)
		return err
	})
	return h
}

func podIP(t *testing.T, namespace, name string) string {
	t.Helper()
	host(t, namespace, name)
	address, err := nodes.Address(namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return address.String()
}

func get(ctx context.Context, t *testing.T, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	p, err := api.Dynamic.Resource(podResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// condition is an error unless the condition of a Pod is true.
func condition(p *unstructured.Unstructured, kind string) error {
	conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == kind && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("Pod %s is not %s: %v", p.GetName(), kind, conditions)
}

// gone waits until the API server has a Pod no more.
func gone(t *testing.T, namespace, name string) {
	t.Helper()
	eventually(t, "the end of Pod "+name, func(ctx context.Context) error {
		_, err := api.Dynamic.Resource(podResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is still there"), err)
	})
}
