package process

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Label is on the Lease of each serving process; its value is the name of the Infra.
const Label = "hostedcluster.densityops.com/serves"

// leaseDuration is after what time without a renewal a serving process is gone.
const leaseDuration = 30 * time.Second

// Annotations of the Lease of a serving process.
const (
	// keyAnnotation is the public key that the process's frames on the VLAN are signed with.
	keyAnnotation = "hostedcluster.densityops.com/peer-key"
	// routesAnnotation names the kinds of routes that the process knows besides those by server name and source, separated by
	// commas. A process of an older release refuses a ProxyServer with others, as a whole.
	routesAnnotation, routesByHost = "hostedcluster.densityops.com/routes", "by-host"
	// vlanAnnotation is the process's VLAN.
	vlanAnnotation = "hostedcluster.densityops.com/vlan"
)

// LeaseName is the name of the Lease of a process that serves an Infra. Who writes a Lease writes its labels and its holder as
// well, but may not choose the name: only what stands under this name speaks for the process.
func LeaseName(infra, process string) string {
	return v1alpha1.LabelValue(infra + "-serving-" + process)
}

// Word is what a serving process says in its Lease.
type Word struct {
	// Process says it; a pod's name.
	Process string
	// Key verifies what the process says on the VLAN; nil: it says nothing there.
	Key ed25519.PublicKey
	// VLAN is its part in holding the server addresses; nil: it leaves them to others.
	VLAN *VLAN
}

// VLAN is what a VLAN pod says about the server addresses.
type VLAN struct {
	// Holding: this pod has them.
	Holding bool `json:"holding"`
	// Epoch of the holder.
	Epoch int64 `json:"epoch,omitempty"`
	// Holder is the pod that has them, as far as this one knows; empty: none.
	Holder string `json:"holder,omitempty"`
	// Addresses that this pod has.
	Addresses []string `json:"addresses,omitempty"`
	// Problems that keep this pod from having them, or from having them undisputed.
	Problems []VLANProblem `json:"problems,omitempty"`
}

// VLANProblem is one thing that is wrong on the VLAN.
type VLANProblem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Write renews the Lease of a process that serves an Infra, with what the process says now.
func (w *Word) Write(lease *coordinationv1.Lease, infra string, now time.Time) error {
	lease.Labels = map[string]string{Label: v1alpha1.LabelValue(infra), v1alpha1.LabelInfra: v1alpha1.LabelValue(infra)}
	lease.Annotations = map[string]string{routesAnnotation: routesByHost}
	if w.Key != nil {
		lease.Annotations[keyAnnotation] = base64.StdEncoding.EncodeToString(w.Key)
	}
	if w.VLAN != nil {
		vlan, err := json.Marshal(w.VLAN)
		if err != nil {
			return err
		}
		lease.Annotations[vlanAnnotation] = string(vlan)
	}
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &w.Process, LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)), RenewTime: ptr.To(metav1.NewMicroTime(now)),
	}
	return nil
}

// SpokenFor is the process that a Lease speaks for, as one that serves an Infra; empty: none.
func SpokenFor(lease *coordinationv1.Lease, infra string) string {
	name := ptr.Deref(lease.Spec.HolderIdentity, "")
	if name == "" || lease.Name != LeaseName(infra, name) {
		return ""
	}
	return name
}

// Key is the key that a process says; nil: none that can be read.
func Key(lease *coordinationv1.Lease) ed25519.PublicKey {
	key, err := base64.StdEncoding.DecodeString(lease.Annotations[keyAnnotation])
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil
	}
	return key
}

// KnowsByHost tells whether a process knows routes by Host.
func KnowsByHost(lease *coordinationv1.Lease) bool {
	return slices.Contains(strings.Split(lease.Annotations[routesAnnotation], ","), routesByHost)
}

// ReadVLAN gives what a process says about the server addresses; nil: nothing that can be read.
func ReadVLAN(lease *coordinationv1.Lease) *VLAN {
	text, said := lease.Annotations[vlanAnnotation]
	if !said {
		return nil
	}
	var v VLAN
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil
	}
	return &v
}

// SaysTheSame tells whether a Lease was no more than renewed, as far as the hub reads it.
func SaysTheSame(old, renewed *coordinationv1.Lease) bool {
	return equality.Semantic.DeepEqual(old.Spec.HolderIdentity, renewed.Spec.HolderIdentity) &&
		old.Labels[Label] == renewed.Labels[Label] && old.Annotations[vlanAnnotation] == renewed.Annotations[vlanAnnotation] &&
		old.Annotations[routesAnnotation] == renewed.Annotations[routesAnnotation]
}
