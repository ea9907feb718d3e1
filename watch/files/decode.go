package files

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/densityops/oooi/api/crds"
	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// key is what makes an object one object, whichever version it is written in.
type key struct {
	group, kind, namespace, name string
}

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

func (k key) compare(other key) int {
	return cmp.Or(strings.Compare(k.namespace, other.namespace), strings.Compare(k.name, other.name),
		strings.Compare(k.kind, other.kind), strings.Compare(k.group, other.group))
}

// object is one manifest, understood.
type object struct {
	key  key
	line int
	// value is a pointer to the typed object; nil for kinds that only show that their namespace exists.
	value any
	// raw is what was read of the manifest, as a manifest in JSON, before defaults: equal bytes are an
	// unchanged object.
	raw []byte
	// placed tells that the manifest itself names the namespace, rather than leaving it to the default.
	placed bool
	// doubtful objects decode, but Validate finds fault with them: they count only where nothing better is
	// known, so that the plan can say on the object what is wrong with it.
	doubtful bool
}

// manifest is the least that says that the object is there.
func (k key) manifest(apiVersion string) []byte {
	meta := map[string]string{"name": k.name}
	if k.namespace != "" {
		meta["namespace"] = k.namespace
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": k.kind, "metadata": meta})
	if err != nil {
		panic(err) // texts always marshal
	}
	return raw
}

// content is what one file says.
type content struct {
	objects []*object // in the order of the file, each key once
	index   map[key]*object
	// again are objects whose key is in objects already.
	again []*object
	// failed are the objects that are there but cannot be understood, with their lines.
	failed map[key]int
	// nameless tells that something failed that could be any object.
	nameless bool
	// broken tells that nothing at all could be read.
	broken   bool
	problems []Problem
	warnings []warning
}

// clean tells whether the content stands for itself, with nothing to be held over from before.
func (c *content) clean() bool {
	return !c.broken && !c.nameless && len(c.failed) == 0 && !slices.ContainsFunc(c.objects, func(o *object) bool { return o.doubtful })
}

// warning is about all objects of one kind, so that it is said once.
type warning struct {
	kind, message string
	line          int
}

// kind is one kind that is understood.
type kind struct {
	group, name string
	versions    []string
	cluster     bool // not namespaced
	schema      *crds.Schema
	decode      func(m map[string]any) (any, error)
}

// machine is what is read of a Cluster API Machine, the same in v1beta1 and v1beta2.
type machine struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name        string            `json:"name,omitempty"`
		Namespace   string            `json:"namespace,omitempty"`
		UID         string            `json:"uid,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type,omitempty"`
			Address string `json:"address,omitempty"`
		} `json:"addresses,omitempty"`
	} `json:"status"`
}

// instance is what is read of a KubeVirt VirtualMachineInstance.
type instance struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name,omitempty"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"metadata"`
	Status struct {
		Interfaces []struct {
			MAC         string   `json:"mac,omitempty"`
			IPAddress   string   `json:"ipAddress,omitempty"`
			IPAddresses []string `json:"ipAddresses,omitempty"`
		} `json:"interfaces,omitempty"`
	} `json:"status"`
}

// typed makes the decoder of a kind of somebody else.
func typed[T any](group, name string, versions ...string) kind {
	return kind{group: group, name: name, versions: versions, schema: crds.ForType[T](name), decode: into[T]}
}

func into[T any](m map[string]any) (any, error) {
	value := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, value); err != nil {
		return nil, err
	}
	return value, nil
}

// decoder understands documents.
type decoder struct {
	kinds map[string]kind // by group/kind
}

const ownGroup = "hostedcluster.densityops.com"

// children are the kinds that oooi writes itself.
var children = []string{"DHCPServer", "DNSServer", "ProxyServer", "DHCPLease"}

func newDecoder() (*decoder, error) {
	schemas, err := crds.Load()
	if err != nil {
		return nil, err
	}
	d := &decoder{kinds: map[string]kind{}}
	namespaces := typed[corev1.Namespace]("", "Namespace", "v1")
	namespaces.cluster = true
	for _, k := range []kind{
		{group: ownGroup, name: "Infra", versions: []string{"v1alpha1"}, schema: schemas["Infra"], decode: into[v1alpha1.Infra]},
		{group: ownGroup, name: "InfraClusterAttachment", versions: []string{"v1alpha1"}, schema: schemas["InfraClusterAttachment"], decode: into[v1alpha1.InfraClusterAttachment]},
		typed[hypershift.HostedCluster]("hypershift.openshift.io", "HostedCluster", "v1beta1"),
		typed[hypershift.NodePool]("hypershift.openshift.io", "NodePool", "v1beta1"),
		typed[machine]("cluster.x-k8s.io", "Machine", "v1beta1", "v1beta2"),
		typed[instance]("kubevirt.io", "VirtualMachineInstance", "v1"),
		typed[corev1.Service]("", "Service", "v1"),
		typed[discoveryv1.EndpointSlice]("discovery.k8s.io", "EndpointSlice", "v1"),
		namespaces,
	} {
		d.kinds[k.group+"/"+k.name] = k
	}
	return d, nil
}

// read understands a whole file. Its problems carry the path, and leave nothing out.
func (d *decoder) read(path string, raw []byte) *content {
	c := &content{index: map[key]*object{}, failed: map[key]int{}}
	if len(raw) == 0 {
		c.broken = true
		c.problems = []Problem{{File: path, Message: "is empty, as a write that was cut short leaves it: write the objects, or a comment if it shall have none"}}
		return c
	}
	docs, err := parse(path, raw)
	if err != nil {
		c.broken = true
		c.problems = []Problem{{File: path, Line: err.line, Message: err.message}}
		return c
	}
	for _, doc := range docs {
		d.document(c, path, doc)
	}
	return c
}

// maxProblems is how many problems of one object are told: nobody reads more.
const maxProblems = 20

// reporter adds the problems of one document.
type reporter struct {
	content *content
	path    string
	doc     document
	object  string
	count   int
}

func (r *reporter) add(field, format string, args ...any) {
	if r.count++; r.count > maxProblems {
		return
	}
	if r.count == maxProblems {
		field, format, args = "", "has more problems than these: fix them first", nil
	}
	r.content.problems = append(r.content.problems, Problem{
		File: r.path, Line: lineOf(r.doc.node, field), Object: r.object, Field: field, Message: fmt.Sprintf(format, args...),
	})
}

func (r *reporter) addAll(errs []crds.FieldError) {
	for _, err := range errs {
		r.add(err.Path, "%s", err.Message)
	}
}

// document understands one document, and adds it or its problems.
func (d *decoder) document(c *content, path string, doc document) {
	r := &reporter{content: c, path: path, doc: doc}
	apiVersion, kindName, ok := header(r)
	if !ok {
		c.nameless = true
		return
	}
	group, version := "", apiVersion
	if g, v, found := strings.Cut(apiVersion, "/"); found {
		group, version = g, v
	}
	known, understood := d.kinds[group+"/"+kindName]
	if !understood && (kindName == "Infra" || kindName == "InfraClusterAttachment") {
		r.object = kindName
		r.add("apiVersion", "%q has no %s: use %s", apiVersion, kindName, v1alpha1.GroupVersion)
		c.nameless = true
		return
	}
	if !understood && group == ownGroup && !slices.Contains(children, kindName) {
		r.object = kindName
		r.add("kind", "%s has no such kind: use Infra or InfraClusterAttachment", apiVersion)
		c.nameless = true
		return
	}
	k, placed, ok := identify(r, group, kindName, understood, known.cluster)
	if !ok {
		c.nameless = true
		return
	}
	r.object = k.String()
	o := &object{key: k, line: doc.node.Line, placed: placed}
	if !understood {
		d.skip(c, group, kindName, doc.node.Line)
		o.raw = k.manifest(apiVersion)
		c.put(o)
		return
	}
	if !slices.Contains(known.versions, version) {
		r.add("apiVersion", "%q is not a version of %s that is understood: use %s", apiVersion, kindName, either(group, known.versions))
		c.failed[k] = doc.node.Line
		return
	}
	if !known.understand(r, o) {
		c.failed[k] = doc.node.Line
		return
	}
	c.put(o)
}

func either(group string, versions []string) string {
	full := make([]string, len(versions))
	for i, v := range versions {
		full[i] = strings.TrimPrefix(group+"/"+v, "/")
	}
	return strings.Join(full, " or ")
}

// header reads apiVersion and kind.
func header(r *reporter) (apiVersion, kind string, ok bool) {
	texts := map[string]string{}
	for _, field := range []string{"apiVersion", "kind"} {
		text, isText := r.doc.value[field].(string)
		switch {
		case r.doc.value[field] == nil || text == "" && isText:
			r.add(field, "is missing: each object needs apiVersion and kind")
		case !isText:
			r.add(field, "must be a text: put a value in quotes if YAML takes it for something else")
		}
		texts[field] = text
	}
	return texts["apiVersion"], texts["kind"], texts["apiVersion"] != "" && texts["kind"] != ""
}

// identify reads the name and the namespace; a namespaced object without one is in "default".
func identify(r *reporter, group, kindName string, understood, cluster bool) (k key, placed, ok bool) {
	r.object = kindName
	k = key{group: group, kind: kindName}
	meta, isMap := r.doc.value["metadata"].(map[string]any)
	if !isMap {
		r.add("metadata", "is missing or not a mapping: give the object a name")
		return k, false, false
	}
	for _, part := range []struct {
		field string
		into  *string
	}{{"name", &k.name}, {"namespace", &k.namespace}} {
		value := meta[part.field]
		text, isText := value.(string)
		if value != nil && !isText {
			r.add("metadata."+part.field, "must be a text: put a value in quotes if YAML takes it for something else")
			return k, false, false
		}
		*part.into = text
	}
	if k.name == "" {
		r.add("metadata.name", "is missing: give the object a name")
		return k, false, false
	}
	switch {
	case cluster:
		k.namespace = ""
		return k, true, true
	case k.namespace != "":
		return k, true, true
	case understood:
		k.namespace = "default"
		meta["namespace"] = k.namespace
	}
	return k, false, true
}

func (d *decoder) skip(c *content, group, kindName string, line int) {
	full := strings.TrimSuffix(kindName+"."+group, ".")
	message := "objects of kind " + full + " are not used: skipped"
	if group == ownGroup {
		message = "objects of kind " + kindName + " are written by oooi itself from Infra and InfraClusterAttachment: ignored, remove them"
	}
	if !slices.ContainsFunc(c.warnings, func(w warning) bool { return w.kind == full }) {
		c.warnings = append(c.warnings, warning{full, message, line})
	}
}

// understand decodes and checks an object of a known kind; false when it cannot be used at all.
func (k *kind) understand(r *reporter, o *object) bool {
	m := r.doc.value
	own, vip, doubtful := k.group == ownGroup, "", false
	if own {
		given, ok := k.givenVIP(r)
		vip, doubtful = given, !ok
		delete(m, "status") // ours to write
		if vip != "" {
			m["status"] = map[string]any{"appsIngressStatus": map[string]any{"externalIP": vip}}
		}
		raw, err := json.Marshal(m)
		if err != nil {
			r.add("", "cannot be kept: %s", err)
			return false
		}
		o.raw = raw
	}
	if errs := k.schema.Apply(m); len(errs) > 0 {
		r.addAll(errs)
		return false
	}
	value, err := k.decode(m)
	if err != nil {
		r.add("", "cannot be read as %s: %s", k.name, err)
		return false
	}
	o.value = value
	if !own {
		return k.keep(r, o)
	}
	var problems []v1alpha1.Problem
	switch v := value.(type) {
	case *v1alpha1.Infra:
		problems = v.Validate()
	case *v1alpha1.InfraClusterAttachment:
		if vip != "" { // the schema is silent about statuses
			v.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{ExternalIP: vip}
		}
		problems = v.Validate()
	}
	for _, p := range problems {
		r.add(p.Field, "%s", p.Message)
	}
	o.doubtful = doubtful || len(problems) > 0
	return true
}

// givenVIP is the VIP that the status of an attachment names; empty: none. Nobody looks into hosted clusters here, so a
// person may say what there is to be seen. Nothing else of a status counts; but without a VIP there may be one that was not written as
// it must be: ok is false then.
func (k *kind) givenVIP(r *reporter) (vip string, ok bool) {
	const field = "appsIngressStatus"
	m := r.doc.value
	if k.name != "InfraClusterAttachment" {
		return "", true
	}
	status, _ := m["status"].(map[string]any)
	apps, _ := status[field].(map[string]any)
	if vip, is := apps["externalIP"].(string); is {
		return vip, true
	}
	errs := k.schema.StatusField(m, field)
	r.addAll(errs)
	return "", len(errs) == 0
}

// keep records what was read of an object of somebody else, no more: a change of the rest is no change.
func (k *kind) keep(r *reporter, o *object) bool {
	switch v := o.value.(type) {
	case *corev1.Namespace:
		o.value = nil
		o.raw = o.key.manifest("v1")
		return true
	case *corev1.Service:
		v.ManagedFields = nil
	case *discoveryv1.EndpointSlice:
		v.ManagedFields = nil
	case *hypershift.HostedCluster:
		v.ManagedFields = nil
	case *hypershift.NodePool:
		v.ManagedFields = nil
	}
	raw, err := json.Marshal(o.value)
	if err != nil {
		r.add("", "cannot be kept: %s", err)
		return false
	}
	o.raw = raw
	switch v := o.value.(type) {
	case *machine:
		o.value = v.plan()
	case *instance:
		o.value = v.plan()
	}
	return true
}

// plan is the Machine as the plan reads it. A file seldom has a uid: then namespace and name stand for it, so that
// a Machine that is deleted and written again is the same Machine.
func (m *machine) plan() *plan.Machine {
	p := &plan.Machine{
		Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, UID: m.Metadata.UID,
		NodePool: m.Metadata.Annotations[hypershift.NodePoolAnnotation],
	}
	if p.UID == "" {
		p.UID = p.Namespace + "/" + p.Name
	}
	for _, a := range m.Status.Addresses {
		p.Addresses = append(p.Addresses, a.Address)
	}
	return p
}

func (i *instance) plan() *plan.VirtualMachineInstance {
	p := &plan.VirtualMachineInstance{Namespace: i.Metadata.Namespace, Name: i.Metadata.Name}
	for _, n := range i.Status.Interfaces {
		addresses := n.IPAddresses
		if n.IPAddress != "" && !slices.Contains(addresses, n.IPAddress) {
			addresses = append([]string{n.IPAddress}, addresses...)
		}
		p.Interfaces = append(p.Interfaces, plan.VMInterface{MAC: n.MAC, Addresses: addresses})
	}
	return p
}

// put adds an object.
func (c *content) put(o *object) {
	if _, dup := c.index[o.key]; dup {
		c.again = append(c.again, o)
		return
	}
	c.index[o.key] = o
	c.objects = append(c.objects, o)
}
