package v1alpha1

// Component names one server of an Infra.
type Component string

// The components of an Infra. The empty Component means the whole object.
const (
	ComponentDHCP  Component = "dhcp"
	ComponentDNS   Component = "dns"
	ComponentProxy Component = "proxy"
)

// Problem is one thing that is wrong with one object, found by looking at that object alone.
//
// +kubebuilder:object:generate=false
type Problem struct {
	// Component that cannot be served because of it; empty: the whole object cannot.
	Component Component
	// Reason is the condition reason, for example PoolReversed.
	Reason string
	// Field is the path of the field, for example spec.infraComponents.dhcp.rangeEnd.
	Field string
	// Message says what is wrong and what to do.
	Message string
}
